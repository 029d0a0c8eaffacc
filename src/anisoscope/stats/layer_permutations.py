"""Could two models be this alike by chance? Permute the rows of one, and compare all pairs of layers again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anisoscope.stats.layer_similarity import (
    MEASURES,
    NEIGHBOURS,
    CentredLayers,
    centred_layers,
    copied_layers,
    flat_layers,
)

_SLACK = 1e-9  # statistics that are equal up to rounding count as equal
OnDraws = Callable[[int], None]  # called with the number of permutations since the last call


@dataclass(frozen=True)
class PermutationTest:
    """One measure of all pairs of layers under permutations; NaN if a pair has no value."""

    value: Tensor  # (A, B) float64: with the rows as they are
    level: Tensor  # (A, B): mean over the permutations
    p: Tensor  # (A, B): probability of this much similarity in any pair of layers


@torch.no_grad()
def permutation_tests(
    a: Sequence[Tensor], b: Sequence[Tensor], draws: int, seed: int, on_draws: OnDraws | None = None
) -> dict[str, PermutationTest]:
    """Test every layer of one model against every layer of another by permuting the rows of the second.

    All pairs of layers share each permutation. Each pair's values are standardised by their mean and deviation over
    the permutations and the original order. The p-value of a pair is the share of orders in which the largest
    standardised value of any pair reaches that of this pair (max-T): (1 + permutations that do)/(1 + permutations).

    Args:
        a: Rows (m, d) of each layer of the first model; they must be exchangeable if the models are unrelated.
        b: Rows (m, d') of each layer of the second model, in the same order.
        draws: Number of permutations.
        seed: Seed of the permutations.
        on_draws: Called with the number of permutations since the last call.

    Returns:
        A test per measure of `layer_similarity`. All memory is for m × m kernels and ranks of every layer.

    >>> x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> round(float(permutation_tests([x], [2 * x], 19, seed=0)["cka"].p), 6)
    0.05
    """
    first, second = _PermutedLayers(a), _PermutedLayers(b)
    i, j = torch.triu_indices(first.m, first.m, offset=1)
    upper = _UpperPairs(i, j, first.kernel[i * first.m + j])
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, list[Tensor]] = {name: [] for name in MEASURES}
    for draw in range(draws + 1):
        order = torch.arange(first.m) if draw == 0 else torch.randperm(first.m, generator=generator)
        for name, value in _compared(first, second, upper, order).items():
            values[name].append(value)
        if on_draws is not None and draw:
            on_draws(1)
    tests = {}
    for name, each in values.items():
        flat = first.flat if name == "cka" else first.copied, second.flat if name == "cka" else second.copied
        tests[name] = _tested(torch.stack(each), flat[0][:, None] | flat[1][None, :], more=name in ("cka", "overlap"))
    return tests


class _PermutedLayers:
    """What is compared under permutations, for all layers of a model: kernels, neighbours and ranks."""

    def __init__(self, layers: Sequence[Tensor]) -> None:
        centred = centred_layers(layers)
        m = centred.square.shape[1]
        self.m = m
        self.flat, self.copied = (
            torch.tensor([r is not None for r in f(layers)]) for f in (flat_layers, copied_layers)
        )
        self.kernel = torch.empty(m * m, len(layers))  # by pair of rows: a look-up reads all layers at once
        self.near = torch.zeros(len(layers), m, NEIGHBOURS, dtype=torch.long)
        self.member = torch.zeros(m * m, len(layers), dtype=torch.bool)
        self.rank = torch.zeros(m * m, len(layers), dtype=torch.int16)
        for layer in range(len(layers)):
            self._fill(layer, centred)

    def _fill(self, layer: int, centred: CentredLayers) -> None:
        m = self.m
        strip = CentredLayers(centred.rows[layer : layer + 1], centred.square[layer : layer + 1]).strip(0, m)
        self.kernel[:, layer] = _unit_kernel(strip.kernel[0]).flatten().float()
        if m <= 2 * NEIGHBOURS:
            return
        order = strip.distance[0].argsort(dim=1)  # (m, m)
        self.near[layer] = order[:, :NEIGHBOURS]
        member = torch.zeros(m, m, dtype=torch.bool).scatter_(1, self.near[layer], True)
        self.member[:, layer] = member.flatten()
        rank = torch.empty(m, m, dtype=torch.int16)
        rank.scatter_(1, order, torch.arange(1, m + 1, dtype=torch.int16).expand(m, m))
        self.rank[:, layer] = rank.flatten()


def _unit_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel without diagonal, U-centred and of length one: products of two of these are debiased CKA.

    Székely and Rizzo 2014: K_ij − r_i/(m − 2) − r_j/(m − 2) + s/((m − 1)(m − 2)), r and s the sums of rows and of all.
    """
    m = len(kernel)
    row = kernel.sum(1) / (m - 2)  # (m,)
    centred = kernel - row[:, None] - row[None, :] + kernel.sum() / ((m - 1) * (m - 2))
    centred.fill_diagonal_(0.0)
    length = centred.norm()
    return centred / length if length > 0 else centred


class _UpperPairs(NamedTuple):
    """The pairs i < j of rows, with the kernels of the first model."""

    i: Tensor  # (pairs,)
    j: Tensor  # (pairs,)
    kernel: Tensor  # (pairs, A)


def _compared(a: _PermutedLayers, b: _PermutedLayers, upper: _UpperPairs, order: Tensor) -> dict[str, Tensor]:
    """Compare all pairs of layers if row i of the second model is its row order[i]; larger is more alike."""
    m = a.m
    row = torch.arange(m)
    kernel = b.kernel.index_select(0, order[upper.i] * m + order[upper.j])  # (pairs, B)
    values = {"cka": 2.0 * (upper.kernel.T @ kernel).double()}
    back = order.argsort()
    near = order[:, None] * m + order[a.near]  # (A, m, k): pairs of rows of b
    common = torch.stack([b.member[each.flatten()].sum(0) for each in near])  # (A, B)
    values["overlap"] = common.double() / (m * NEIGHBOURS)
    ahead = torch.stack([b.rank[each[:, 0]].double().mean(0) for each in near])  # (A, B)
    other = row * m + back[b.near[:, order, 0]]  # (B, m): pairs of rows of a
    behind = torch.stack([a.rank[each].double().mean(0) for each in other], dim=1)  # (A, B)
    return {**values, "a_to_b": -2 / m * ahead, "b_to_a": -2 / m * behind}


def _tested(values: Tensor, gap: Tensor, *, more: bool) -> PermutationTest:
    """Return the test of one measure from its values (1 + draws, A, B), the original order first."""
    spread = values.std(0, correction=0)
    z = torch.where(spread > 0, (values - values.mean(0)) / spread, 0.0)  # (1 + draws, A, B)
    largest = z.masked_fill(gap, -torch.inf).flatten(1).amax(1)  # (1 + draws,)
    reached = largest[:, None, None] >= z[0] - _SLACK  # the original order reaches its own value
    sign = 1.0 if more else -1.0  # an imbalance is small if layers are alike
    level = values[1:].mean(0) if len(values) > 1 else torch.full_like(values[0], torch.nan)
    columns = (sign * values[0], sign * level, reached.double().mean(0))
    return PermutationTest(*(column.masked_fill(gap, torch.nan) for column in columns))
