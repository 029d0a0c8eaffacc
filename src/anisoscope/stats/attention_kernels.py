"""Attention with V = K: the mean key and the log-sum-exp of every query, by the fastest call that the device has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ALIGN = 8  # fused kernels are fast for multiples of this head width

Kernel = Callable[[Tensor, Tensor, float, Tensor | None, bool], tuple[Tensor, Tensor]]


def mean_key_kernel(device: torch.device) -> Kernel:
    """Return the CPU's fused operator, which gives the log-sum-exp but is private, or two public calls instead."""
    fused = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    return mean_key_fused if device.type == "cpu" and fused is not None else mean_key_public


def mean_key_fused(q: Tensor, k: Tensor, scaling: float, visible: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    mask = None if visible is None else torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -math.inf)
    fused: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mean, lse = fused(q, k, k, 0.0, causal, attn_mask=mask, scale=scaling)
    return mean, lse


def mean_key_public(
    q: Tensor, k: Tensor, scaling: float, visible: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Use public calls: a dummy key whose logit is the mean logit m of the row gets the weight 1 / (1 + eᴴ).

    H = lse − m lies between 0 and ln s, so that weight is always well away from 0 and 1 and lse = m + ln(1/weight − 1)
    loses no digits, however large the logits are.
    """
    mean = functional.scaled_dot_product_attention(q, k, k, attn_mask=visible, is_causal=causal, scale=scaling)
    level = scaling * (q * mean).sum(-1, keepdim=True)  # (b, h, t, 1)
    width = -(q.shape[-1] + 1) % _ALIGN
    # The dummy is key 0; a dummy query 0 keeps causality aligned.
    asking = functional.pad(torch.cat([q * scaling, level], -1), (0, width, 1, 0))  # (b, h, t + 1, d + 1 + width)
    keys = functional.pad(k, (0, 1 + width, 1, 0))  # (b, h, s + 1, d + 1 + width)
    keys[:, :, 0, q.shape[-1]] = 1.0
    indicator = torch.zeros_like(keys)
    indicator[:, :, 0] = 1.0
    seen = None if visible is None else functional.pad(visible, (1, 0, 1, 0), value=True)
    weight = functional.scaled_dot_product_attention(
        asking, keys, indicator, attn_mask=seen, is_causal=causal, scale=1.0
    )
    return mean, level[..., 0] - torch.logit(weight[:, :, 1:, 0])
