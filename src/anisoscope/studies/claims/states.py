"""Hidden states and attention of a model on a few windows, in memory: for what no statistic of a stream can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import capture, expand, find_layout
from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.token_table import Batch
from anisoscope.metrics import find
from anisoscope.records import Site
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.head_scores import Attention, Heads

Batches = Sequence[Batch | Mapping[str, Tensor]]


def states(model: nn.Module, batches: Batches, sites: Sequence[str]) -> dict[str, Tensor]:
    """The rows (tokens, d) at each of the sites, in the order of the tokens; padding is left out."""
    found: dict[str, list[Tensor]] = {}
    for given, seen in _seen(model, batches, sites):
        counts = _counts(given)
        for site, x in seen.items():
            rows = x[counts.to(x.device)] if counts is not None and counts.shape == x.shape[:2] else x.flatten(0, 1)
            found.setdefault(str(site), []).append(rows.float().cpu())
    return {site: torch.cat(parts) for site, parts in found.items()}


def entropies(model: nn.Module, batches: Batches, *, centred: bool = False) -> dict[tuple[int, int], float]:
    """Mean entropy by (layer, head), 1 where attention is even; `centred` takes the mean query out first.

    The mean query is taken at each place of the window over the windows: rotary embedding turns it from place to
    place. A model is run as it is either way: only the pattern of each layer is computed anew.
    """
    held: dict[int, list[tuple[Heads, Tensor]]] = {}
    for given, seen in _seen(model, batches, ["pattern"]):
        for site, heads in seen.items():
            if isinstance(heads, Heads):
                counts = _counts(given)
                b, _, t, _ = heads.q.shape
                held.setdefault(site.layer or 0, []).append(
                    (heads, torch.ones(b, t, dtype=torch.bool) if counts is None else counts)
                )
    found = {}
    for layer, parts in held.items():
        total = _pattern(parts, centred)
        for head, (entropy, rows) in enumerate(zip(total.entropy.tolist(), total.rows.tolist(), strict=True)):
            found[layer, head] = entropy / rows
    return found


def _pattern(parts: list[tuple[Heads, Tensor]], centred: bool) -> Attention:
    longest = max(heads.q.shape[2] for heads, _ in parts)
    whole = [(heads, counts) for heads, counts in parts if heads.q.shape[2] == longest]  # a cut window has no mean
    mean = torch.cat([heads.q for heads, _ in whole]).mean(0) if centred else None  # (h, t, d)
    total: Attention | None = None
    for heads, counts in whole:
        shown = heads if mean is None else replace(heads, q=heads.q - mean)
        one = Attention.of(shown, counts, torch.zeros(1, dtype=torch.long))
        total = one if total is None else total + one
    assert total is not None
    return total


def cosines_before_rotation(model: nn.Module, batches: Batches) -> dict[tuple[int, int], float]:
    """cos(q̄, k̄) by (layer, head) of queries and keys as they are before rotary embedding, with its sign."""
    sums: dict[Site, Tensor] = {}
    for _, seen in _seen(model, batches, ["q.pre", "k.pre"]):
        for site, x in seen.items():  # (b, heads, T, head width)
            sums[site] = sums.get(site, torch.zeros(())) + x.double().sum((0, 2)).cpu()
    found = {}
    for site, q in sums.items():
        if site.kind == "q.pre":
            k = sums[replace(site, kind="k.pre")]
            k = k.repeat_interleave(len(q) // len(k), 0)  # key heads that several query heads share
            for head, value in enumerate(nn.functional.cosine_similarity(q, k).tolist()):
                found[site.layer or 0, head] = value
    return found


def gaussian_dimension(rows: Tensor, seed: int) -> float:
    """What TwoNN reads of as many Gaussian rows with the covariance of these, (n, d)."""
    x = rows.double()
    values, axes = torch.linalg.eigh(torch.cov(x.T))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    return two_nn((noise * values.clamp(min=0).sqrt()) @ axes.T)


def two_nn(rows: Tensor) -> float:
    """Intrinsic dimension of rows (n, d), duplicates removed."""
    metric = find(["two_nn"])[0]
    value = metric.values(cloud_of(rows, metric.sources, sample=len(rows)))[0].value
    assert value is not None
    return value


def mean_cosine(rows: Tensor) -> float:
    """(‖Σu‖² − n)/(n(n − 1)) of rows (n, d)."""
    u = torch.nn.functional.normalize(rows.double(), dim=1)
    n = len(u)
    return float((u.sum(0).square().sum() - n) / (n * (n - 1)))


def _seen(model: nn.Module, batches: Batches, sites: Sequence[str]) -> Any:
    """Every batch with what was seen of it: tensors by site, copied, for the model may use their memory again."""
    device = device_of(model)
    layout = find_layout(model, first_item(batches[0], device))
    seen: dict[Site, Any] = {}

    def sink(site: Site, x: Any) -> None:
        seen[site] = replace(x, q=x.q.clone(), k=x.k.clone()) if isinstance(x, Heads) else x.clone()

    wanted = expand(layout, list(sites))
    with torch.inference_mode(), capture(model, wanted, sink, layout=layout):
        for given in batches:
            seen.clear()
            inputs = given.inputs if isinstance(given, Batch) else given
            model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()})
            yield given, dict(seen)


def _counts(given: Batch | Mapping[str, Tensor]) -> Tensor | None:
    return given.counts if isinstance(given, Batch) else None
