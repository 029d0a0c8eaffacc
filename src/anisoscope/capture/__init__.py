"""Model -> tensors at named sites."""

from anisoscope.capture.blocks import find_layout
from anisoscope.capture.hooks import Seen, capture
from anisoscope.capture.layout import Block, Layout, Stack, expand

__all__ = ["Block", "Layout", "Seen", "Stack", "capture", "expand", "find_layout"]
