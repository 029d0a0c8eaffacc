"""The Attention statistic against a float64 softmax over every row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.stats import head_scores
from anisoscope.stats.attention_kernels import Kernel, mean_key_fused, mean_key_public
from anisoscope.stats.head_scores import Attention, Heads, Scores, attention_rows
from anisoscope.stats.packing import pack, unpack
from tests.oracles import attention as oracle

NAMES = ("entropy", "sink", "largest", "logit_std", "uniform", "logit_rows", "logit_max", "logit_peak")


def make_heads(
    b: int = 2, h: int = 4, g: int = 4, t: int = 7, s: int | None = None, d: int = 8, scale: float = 2.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q = scale * torch.randn(b, h, t, d, generator=draw)
    return q, scale * torch.randn(b, g, s or t, d, generator=draw) + 3.0


def everyone(q: Tensor) -> Tensor:
    return torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)


def causal(t: int, s: int | None = None) -> Tensor:
    s = s or t
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)[None, None]


def assert_close(a: Attention, logits: oracle.Array, visible: Tensor, counts: Tensor, tolerance: float = 1e-5) -> None:
    expected = oracle.sums(logits, visible.numpy(), counts.numpy())
    np.testing.assert_array_equal(a.rows.numpy(), expected["rows"])
    np.testing.assert_array_equal(a.spread_rows.numpy(), expected["rows"])
    for name in NAMES:
        np.testing.assert_allclose(getattr(a, name).numpy(), expected[name], rtol=tolerance, atol=tolerance)


def logits_of(heads: Heads) -> oracle.Array:
    bias = None if heads.bias is None else heads.bias.double().numpy()
    q, k = heads.q.double().numpy(), heads.k.double().numpy()
    return oracle.logits_of(q, k, heads.scaling, softcap=heads.softcap, bias=bias)


PUBLIC_OR_FUSED = pytest.mark.parametrize("kernel", [mean_key_fused, mean_key_public])


@PUBLIC_OR_FUSED
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_equals_a_softmax_over_every_row(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, groups: int, is_causal: bool
) -> None:
    monkeypatch.setattr(head_scores, "mean_key_kernel", lambda device: kernel)
    q, k = make_heads(g=groups)
    heads = Heads(q, k, 0.3, causal=is_causal)
    visible = causal(7) if is_causal else torch.ones(1, 1, 7, 7, dtype=torch.bool)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), visible, everyone(q))


@PUBLIC_OR_FUSED
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_padding_keys_are_invisible_and_padding_queries_never_count(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, side: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(head_scores, "mean_key_kernel", lambda device: kernel)
    q, k = make_heads(g=2)
    counts = everyone(q)
    counts[0, slice(0, 3) if side == "left" else slice(4, 7)] = False
    visible = causal(7) & counts[:, None, None, :]
    mask = visible
    if dtype == torch.float32:
        mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(dtype).min)
    k[~counts[:, None, :].expand(-1, 2, -1)] = 1e4
    heads = Heads(q, k, 0.3, mask=mask)
    assert_close(Attention.of(heads, counts), logits_of(heads), visible, counts)


@PUBLIC_OR_FUSED
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_as_a_number_equals_a_window_as_a_mask(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, is_causal: bool
) -> None:
    monkeypatch.setattr(head_scores, "mean_key_kernel", lambda device: kernel)
    q, k = make_heads(t=9)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    visible = (distance < 3) & (distance >= (0 if is_causal else -2))
    heads = Heads(q, k, 0.3, causal=is_causal, window=3)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), visible[None, None], everyone(q))
    masked = Heads(q, k, 0.3, mask=visible[None, None])
    assert_close(Attention.of(masked, everyone(q)), logits_of(heads), visible[None, None], everyone(q))


def test_cached_keys_before_the_queries_are_visible_to_all_of_them() -> None:
    q, k = make_heads(t=3, s=8)
    heads = Heads(q, k, 0.3, causal=True)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), causal(3, 8), everyone(q))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("biased", [True, False])
def test_soft_caps_and_biases_are_part_of_the_logits(softcap: float | None, biased: bool) -> None:
    q, k = make_heads(g=2)
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(1)) if biased else None
    heads = Heads(q, k, 0.3, causal=True, softcap=softcap, bias=bias)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), causal(7), everyone(q))


def test_a_bias_inside_a_float_mask_is_kept() -> None:
    q, k = make_heads()
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(1))
    mask = torch.where(causal(7), bias, torch.finfo(torch.float32).min)
    heads = Heads(q, k, 0.3, mask=mask)
    expected = logits_of(Heads(q, k, 0.3, bias=bias))
    assert_close(Attention.of(heads, everyone(q)), expected, causal(7), everyone(q))


@PUBLIC_OR_FUSED
def test_huge_logits_keep_their_entropy(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(head_scores, "mean_key_kernel", lambda device: kernel)
    q, k = make_heads(t=12, scale=8.0)
    heads = Heads(q, k + 40.0, 1.0, causal=True)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), causal(12), everyone(q), 2e-4)


def test_probabilities_give_the_same_as_queries_and_keys() -> None:
    q, k = make_heads()
    heads = Heads(q, k, 0.3, causal=True)
    logits = torch.as_tensor(logits_of(heads)).masked_fill(~causal(7), -torch.inf)
    p = logits.softmax(-1)
    of_p = torch.where(causal(7), p, 1.0).log().numpy()  # probabilities tell the logits of a row up to a constant
    assert_close(Attention.of_probabilities(p, everyone(q)), of_p, causal(7), everyone(q))
    assert_close(Attention.of(Scores(logits), everyone(q)), logits_of(heads), causal(7), everyone(q))


def test_attention_of_two_halves_adds_up() -> None:
    q, k = make_heads(b=4)
    whole = Attention.of(Heads(q, k, 0.3, causal=True), everyone(q))
    parts = [Attention.of(Heads(q[i : i + 2], k[i : i + 2], 0.3, causal=True), everyone(q)[:2]) for i in (0, 2)]
    for name, total in pack(parts[0] + parts[1]).items():
        torch.testing.assert_close(total, pack(whole)[name], rtol=1e-6, atol=1e-6)


def test_rows_computed_once_can_be_summed_over_any_queries() -> None:
    q, k = make_heads()
    heads, some = Heads(q, k, 0.3, causal=True), everyone(q)
    some[0, ::2] = False
    rows = attention_rows(heads, everyone(q))
    assert_close(Attention.of_rows(rows, some), logits_of(heads), causal(7), some)


def test_the_spread_at_some_positions_counts_only_those() -> None:
    q, k = make_heads()
    heads = Heads(q, k, 0.3, causal=True)
    at = torch.tensor([2, 5])
    some = torch.zeros_like(everyone(q))
    some[:, at] = True
    partial, expected = Attention.of(heads, everyone(q), at), Attention.of(heads, some)
    for name in ("spread_rows", "largest", "largest_square", "logit_std", "logit_std_square"):
        torch.testing.assert_close(getattr(partial, name), getattr(expected, name))
    assert partial.rows.tolist() == [12.0] * 4
    none = Attention.of(heads, everyone(q), torch.tensor([], dtype=torch.int64))
    assert none.spread_rows.tolist() == [0.0] * 4
    torch.testing.assert_close(none.entropy, partial.entropy)


def test_computing_in_blocks_of_queries_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = make_heads(g=2)
    visible = causal(7).expand(2, 1, 7, 7)
    whole = Attention.of(Heads(q, k, 0.3, mask=visible), everyone(q))
    monkeypatch.setattr(head_scores, "_BLOCK", 2 * 2 * 4 * 7)
    for name, total in pack(Attention.of(Heads(q, k, 0.3, mask=visible), everyone(q))).items():
        torch.testing.assert_close(total, pack(whole)[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3 * 4 * 9, 1 << 20])
@pytest.mark.parametrize("is_causal", [True, False])
def test_largest_logits_do_not_depend_on_the_size_of_blocks_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, size: int, is_causal: bool
) -> None:
    monkeypatch.setattr(head_scores, "_IN_CACHE", size)
    q, k = make_heads(g=2, t=7, s=9)
    heads = Heads(q, k, 0.3, causal=is_causal)
    visible = causal(7, 9) if is_causal else torch.ones(1, 1, 7, 9, dtype=torch.bool)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), visible, everyone(q))


def test_half_precision_queries_are_widened() -> None:
    q, k = make_heads()
    heads = Heads(q.bfloat16(), k.bfloat16(), 0.3, causal=True)
    assert_close(Attention.of(heads, everyone(q)), logits_of(heads), causal(7), everyone(q))


def test_sums_of_squares_are_those_of_the_rows() -> None:
    q, k = make_heads()
    heads = Heads(q, k, 0.3, causal=True)
    rows, a = attention_rows(heads, everyone(q)), Attention.of(heads, everyone(q))
    torch.testing.assert_close(a.entropy_square, rows.entropy[:, :, 1:].double().square().sum((0, 2)))
    torch.testing.assert_close(a.largest_square, rows.largest[:, :, 1:].double().square().sum((0, 2)))


def test_attention_survives_packing() -> None:
    q, k = make_heads()
    a = Attention.of(Heads(q, k, 0.3), everyone(q))
    back = unpack(Attention, pack(a))
    assert all(torch.equal(x, pack(back)[name]) for name, x in pack(a).items())
