"""Vocabulary matrices and the final norm: geometry that needs no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.hooks import Layout, find_layout
from anisoscope.measurement.final_norm import final_norm, gain_and_bias
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.stats.collect import batches_of, collect

INPUT, OUTPUT, NORM = "weight.input", "weight.output", "weight.final_norm"


def vocabulary_matrices(model: nn.Module) -> dict[str, Tensor]:
    """Return the input and output embeddings, (vocabulary, d) each; the output only if it is a separate matrix."""
    matrices: dict[str, Tensor] = {}
    entry = _module_from(model, "get_input_embeddings")
    if entry is None:
        entry = max(
            (m for m in model.modules() if isinstance(m, nn.Embedding)), key=lambda m: m.num_embeddings, default=None
        )
    if entry is not None:
        matrices[INPUT] = entry.weight.detach()
    leave = _module_from(model, "get_output_embeddings")
    if leave is None and entry is not None and not hasattr(model, "get_output_embeddings"):
        like = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.shape == entry.weight.shape]
        leave = (
            like[-1] if like else None
        )  # a plain model names none: take the layer that maps states to the vocabulary
    if leave is not None and (INPUT not in matrices or leave.weight.data_ptr() != matrices[INPUT].data_ptr()):
        matrices[OUTPUT] = leave.weight.detach()
    if not matrices:
        raise InputError(f"{type(model).__name__} has no vocabulary matrix; --weights needs a model of text")
    return matrices


def measure_weights(
    model: nn.Module,
    metrics: Sequence[str] | None,
    *,
    vocabulary: int | None,
    sample: int,
    run: str,
    errors: bool,
    layout: Layout | None = None,
) -> Iterator[list[MetricResult]]:
    """Measure the vocabulary matrices (raw, centred, trained rows only) and the final norm's gain and bias.

    `vocabulary` is the number of ids of the tokenizer: rows beyond it pad the matrix and were never trained.
    """
    chosen = [m for m in choose_metrics(metrics, set()) if metrics is not None or not m.slow]
    for site, matrix in vocabulary_matrices(model).items():
        for name, rows in _versions(matrix, vocabulary).items():
            measured = _measure_matrix(rows, chosen, site, run, sample, errors)
            yield [
                MetricResult(replace(m.record, variant={**m.record.variant, "matrix": name}), m.replicates)
                for m in measured
            ]
    yield _norm_entries(model, layout, run)


def weight_metrics() -> list[Metric]:
    """Return the metrics that `measure_weights` may record, for the run's cards."""
    return [m for m in choose_metrics(None, {"norm"}) if not m.slow]


def _versions(matrix: Tensor, vocabulary: int | None) -> dict[str, Tensor]:
    versions = {"raw": matrix, "centred": _centred(matrix)}
    trained = matrix[_trained(matrix, vocabulary)]
    if len(trained) < len(matrix):
        versions["trained"] = trained
        versions["trained, centred"] = _centred(trained)
    return versions


def _trained(matrix: Tensor, vocabulary: int | None) -> Tensor:
    """Which rows training can have changed: in the tokenizer's vocabulary, not zero, and no copy of another row."""
    _, inverse, count = torch.unique(matrix, dim=0, return_inverse=True, return_counts=True)
    alone = (count[inverse] == 1) & (matrix != 0).any(1)
    if vocabulary is not None:
        alone &= torch.arange(len(matrix), device=matrix.device) < vocabulary
    return alone


def _centred(matrix: Tensor) -> Tensor:
    return (matrix.double() - matrix.double().mean(0)).to(matrix.dtype)


def _measure_matrix(
    rows: Tensor, metrics: Sequence[Metric], site: str, run: str, sample: int, errors: bool
) -> list[MetricResult]:
    names = set().union(*(metric.sources for metric in metrics)) | {"Directions", "Moments"}
    cloud = collect(lambda: batches_of(rows), names, sample=sample)
    return evaluate(cloud, metrics, site=site, run=run, unit="rows", errors="fast" if errors else False)


def _norm_entries(model: nn.Module, layout: Layout | None, run: str) -> list[MetricResult]:
    """Gain and bias as clouds of one-dimensional rows, so that ordinary metrics apply."""
    try:
        norm = final_norm(model, find_layout(model) if layout is None else layout)
    except AnisoscopeError:
        return []
    out: list[MetricResult] = []
    for name, values in zip(("norm_gain", "norm_bias"), gain_and_bias(norm), strict=True):
        if values is not None:
            metrics = choose_metrics([name], {"norm"})
            cloud = collect(lambda values=values: batches_of(values[:, None]), {"Moments"})  # type: ignore[misc]
            out += evaluate(cloud, metrics, site=NORM, run=run, errors=False)
    return out


def _module_from(model: nn.Module, method: str) -> Any:
    """The module that a method of a Hugging Face model returns, or None if it has none."""
    getter = getattr(model, method, None)
    try:
        module = getter() if getter is not None else None
    except NotImplementedError:
        return None
    return module if isinstance(getattr(module, "weight", None), Tensor) else None
