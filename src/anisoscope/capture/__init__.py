"""Model -> tensors at named sites, forward and backward. All hooks are in this package."""

from anisoscope.capture.find import find_layout
from anisoscope.capture.forward import CaptureLog, capture
from anisoscope.capture.invisible import side_effect_free
from anisoscope.capture.layout import LayerRef, Layout, Stack, expand

__all__ = ["CaptureLog", "LayerRef", "Layout", "Stack", "capture", "expand", "find_layout", "side_effect_free"]
