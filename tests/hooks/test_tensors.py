"""The tensors that modules pass around."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout
from tests.captures import captured


def test_nested_tensors_are_refused_with_the_remedy() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    batch = {"src": torch.randn(2, 3, 8), "src_key_padding_mask": padding}
    with pytest.warns(UserWarning, match="nested"), pytest.raises(CaptureError, match="enable_nested_tensor=False"):
        captured(model, batch, ["resid"], find_layout(model))
