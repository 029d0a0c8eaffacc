"""Hidden states and attention of a model on a few windows, kept in memory for what no streamed statistic gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.token_table import Batch
from anisoscope.hooks import expand, find_layout, observe_sites
from anisoscope.metrics import find
from anisoscope.records import Site
from anisoscope.stats.collect import cloud_of, collect
from anisoscope.stats.head_scores import Attention, Heads
from anisoscope.stats.rows import Rows, token_table

Batches = Sequence[Batch | Mapping[str, Tensor]]


def states(model: nn.Module, batches: Batches, sites: Sequence[str]) -> dict[str, Tensor]:
    """Return the rows (tokens, d) at each site, in the order of the tokens, without padding."""
    parts: dict[str, list[Tensor]] = {}
    for batch, captured in _captured(model, batches, sites):
        counts = _counts(batch)
        for site, x in captured.items():
            rows = x[counts.to(x.device)] if counts is not None and counts.shape == x.shape[:2] else x.flatten(0, 1)
            parts.setdefault(str(site), []).append(rows.float().cpu())
    return {site: torch.cat(each) for site, each in parts.items()}


def windows(batches: Batches) -> Tensor:
    """Return the number of the window of each row that `states` returns, (tokens,)."""
    lengths: list[int] = []
    for batch in batches:
        counts = _counts(batch)
        inputs = batch.inputs if isinstance(batch, Batch) else batch
        b, t = inputs["input_ids"].shape
        lengths += [t] * b if counts is None else counts.sum(1).tolist()
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def matrix_entropy(rows: Tensor, window: Tensor) -> float:
    """Return the matrix entropy of rows (n, d), mean over windows; rows that were left out between them do not count.

    >>> round(matrix_entropy(torch.eye(4), torch.zeros(4, dtype=torch.long)), 6)
    1.0
    """
    starts = torch.cat((torch.tensor([True]), window[1:] != window[:-1])).nonzero()[:, 0]
    place = torch.arange(len(window))
    first = starts[torch.bucketize(place, starts, right=True) - 1]
    metric = find(["matrix_entropy"])[0]
    sequences = Rows(rows, token_table(window, place - first))
    value = metric.values(collect(lambda: [sequences], metric.sources | {"Moments"}))[0].value
    assert value is not None
    return value


def entropies(model: nn.Module, batches: Batches, *, centred: bool = False) -> dict[tuple[int, int], float]:
    """Return the mean attention entropy by (layer, head), divided by that of even attention.

    Args:
        model: The model.
        batches: Its inputs.
        centred: Subtract the mean query first. The mean is over windows, separately at each position, because rotary
            embedding turns it with the position. Only the pattern is recomputed; the model runs unchanged.
    """
    by_layer: dict[int, list[tuple[Heads, Tensor]]] = {}
    for batch, captured in _captured(model, batches, ["pattern"]):
        for site, heads in captured.items():
            if isinstance(heads, Heads):
                counts = _counts(batch)
                b, _, t, _ = heads.q.shape
                by_layer.setdefault(site.layer or 0, []).append(
                    (heads, torch.ones(b, t, dtype=torch.bool) if counts is None else counts)
                )
    entropy_of = {}
    for layer, parts in by_layer.items():
        total = _pattern(parts, centred)
        for head, (entropy, rows) in enumerate(zip(total.entropy.tolist(), total.rows.tolist(), strict=True)):
            entropy_of[layer, head] = entropy / rows
    return entropy_of


def _pattern(parts: list[tuple[Heads, Tensor]], centred: bool) -> Attention:
    longest = max(heads.q.shape[2] for heads, _ in parts)
    whole = [
        (heads, counts) for heads, counts in parts if heads.q.shape[2] == longest
    ]  # a shorter window has no mean at its last positions
    mean = torch.cat([heads.q for heads, _ in whole]).mean(0) if centred else None  # (h, t, d)
    total: Attention | None = None
    for heads, counts in whole:
        shown = heads if mean is None else replace(heads, q=heads.q - mean)
        one = Attention.of(shown, counts, torch.zeros(1, dtype=torch.long))
        total = one if total is None else total + one
    assert total is not None
    return total


def cosines_before_rotation(model: nn.Module, batches: Batches) -> dict[tuple[int, int], float]:
    """Return cos(q̄, k̄) by (layer, head), with its sign, of queries and keys before rotary embedding."""
    sums: dict[Site, Tensor] = {}
    for _, captured in _captured(model, batches, ["q.pre", "k.pre"]):
        for site, x in captured.items():  # (b, heads, T, head width)
            sums[site] = sums.get(site, torch.zeros(())) + x.double().sum((0, 2)).cpu()
    cosines = {}
    for site, q in sums.items():
        if site.kind == "q.pre":
            k = sums[replace(site, kind="k.pre")]
            k = k.repeat_interleave(len(q) // len(k), 0)  # key heads that several query heads share
            for head, value in enumerate(nn.functional.cosine_similarity(q, k).tolist()):
                cosines[site.layer or 0, head] = value
    return cosines


def gaussian_dimension(rows: Tensor, seed: int) -> float:
    """Return the TwoNN dimension of as many Gaussian rows (n, d) with the covariance of these."""
    x = rows.double()
    values, axes = torch.linalg.eigh(torch.cov(x.T))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    return two_nn((noise * values.clamp(min=0).sqrt()) @ axes.T)


def two_nn(rows: Tensor) -> float:
    """Return the TwoNN dimension of rows (n, d), without duplicates."""
    metric = find(["two_nn"])[0]
    value = metric.values(cloud_of(rows, metric.sources, sample=len(rows)))[0].value
    assert value is not None
    return value


def mean_cosine(rows: Tensor) -> float:
    """Return the mean cosine over pairs of rows (n, d): (‖Σu‖² − n)/(n(n − 1))."""
    u = torch.nn.functional.normalize(rows.double(), dim=1)
    n = len(u)
    return float((u.sum(0).square().sum() - n) / (n * (n - 1)))


def _captured(model: nn.Module, batches: Batches, sites: Sequence[str]) -> Any:
    """Yield every batch with its tensors by site; they are copies, because the model may reuse the memory."""
    device = device_of(model)
    layout = find_layout(model, first_item(batches[0], device))
    captured: dict[Site, Any] = {}

    def sink(site: Site, x: Any) -> None:
        captured[site] = replace(x, q=x.q.clone(), k=x.k.clone()) if isinstance(x, Heads) else x.clone()

    wanted = expand(layout, list(sites))
    with torch.inference_mode(), observe_sites(model, wanted, sink, layout=layout):
        for batch in batches:
            captured.clear()
            inputs = batch.inputs if isinstance(batch, Batch) else batch
            model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()})
            yield batch, dict(captured)


def _counts(batch: Batch | Mapping[str, Tensor]) -> Tensor | None:
    return batch.counts if isinstance(batch, Batch) else None
