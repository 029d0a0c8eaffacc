"""Model -> tensors at named sites."""

from anisoscope.capture.find import find_layout
from anisoscope.capture.forward import CaptureLog, capture
from anisoscope.capture.layout import LayerRef, Layout, Stack, expand

__all__ = ["CaptureLog", "LayerRef", "Layout", "Stack", "capture", "expand", "find_layout"]
