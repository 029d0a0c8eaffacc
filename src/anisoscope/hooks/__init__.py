"""Model -> tensors at named sites, forward and backward. All hooks are in this package."""

from anisoscope.hooks.find import find_layout
from anisoscope.hooks.forward import CaptureLog, observe_sites
from anisoscope.hooks.invisible import side_effect_free
from anisoscope.hooks.layout import LayerRef, Layout, Stack, expand

__all__ = ["CaptureLog", "LayerRef", "Layout", "Stack", "expand", "find_layout", "observe_sites", "side_effect_free"]
