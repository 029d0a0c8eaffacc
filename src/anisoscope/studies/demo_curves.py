"""The three curves of the demo, measured on groups of held-out windows: bell, intrinsic dimension, tangent energy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from anisoscope.metrics import find
from anisoscope.stats.collect import cloud_of
from anisoscope.store.files import append_lines
from anisoscope.studies.claims.sublayer_states import sublayer_records, sublayer_states
from anisoscope.studies.lab.interventions import principal_directions
from anisoscope.studies.lab.transformer import Transformer

GROUPS = 4  # of held-out windows: the units of the demo's intervals
RANK = 8  # of the bases
_ESTIMATORS = ("two_nn", "two_nn_paper")


@dataclass(frozen=True)
class DemoMeasurement:
    """What the demo measures at one step; lists have one entry per group of windows.

    Attributes:
        step: The training step.
        profiles: λ1/Σλ over states, for each group.
        dimension: Intrinsic dimension, mean over layers, duplicates removed.
        dimension_paper: The same by the published estimator.
        energy: Share of the hidden gradients in the basis of this step, for each group and layer; empty for encoders.
        width: Width of the model.
        profiles_no_sink: The profiles without first tokens of windows and massive tokens.
    """

    step: int
    profiles: list[list[float]]
    dimension: list[float]
    dimension_paper: list[float]
    energy: list[list[float]]
    width: int = 64
    profiles_no_sink: list[list[float]] = field(default_factory=list)

    @property
    def profile(self) -> list[float]:
        """The profile of all groups together."""
        return [fmean(values) for values in zip(*self.profiles, strict=True)]

    @property
    def enrichment(self) -> float | None:
        """Gradient energy over that of a random basis, mean over layers and groups."""
        if not self.energy:
            return None
        return math.exp(fmean(log_enrichment(group, self.width) for group in self.energy))


def log_enrichment(energy: Sequence[float], width: int) -> float:
    """Return the mean over layers of log(energy / (rank / width))."""
    return fmean(math.log(max(each, 1e-12) * width / RANK) for each in energy)


def log_ratio(energy: Sequence[float], width: int) -> float:
    """Return the mean over layers of the log tangent/normal ratio, E(d − r) / ((1 − E) r)."""
    ratios = [each * (width - RANK) / max(1e-12, (1 - each) * RANK) for each in energy]
    return fmean(math.log(max(ratio, 1e-12)) for ratio in ratios)


def demo_measurement(model: Transformer, ids: Tensor, step: int) -> DemoMeasurement:
    """Measure a model on held-out windows (windows, context), group by group; the model is left as it was.

    Bases are fitted on the first half of the windows and tested on the gradients of the second half.
    """
    with _evaluation(model):
        groups = [[{"input_ids": part}] for part in ids.tensor_split(GROUPS)]
        window = ids.shape[1]
        records = [sublayer_records(model, group, window) for group in groups]
        profiles, kept = (
            [[r.value or 0.0 for r in each if r.tokens == tokens] for each in records] for tokens in ("all", "no-sink")
        )
        dimensions = [_dimensions(model, group) for group in groups]
        energy: list[list[float]] = []
        if model.config.causal and model.config.objective == "next":
            fit, test = ids.tensor_split(2)
            energy = gradient_energies(model, test, principal_directions(model, fit, RANK))
        return DemoMeasurement(
            step, profiles, [d[0] for d in dimensions], [d[1] for d in dimensions], energy, model.config.width, kept
        )


@contextmanager
def _evaluation(model: Transformer) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _dimensions(model: Transformer, batches: list[dict[str, Tensor]]) -> list[float]:
    """The intrinsic dimension by each estimator, mean over states."""
    values: list[list[float]] = [[] for _ in _ESTIMATORS]
    for rows in sublayer_states(model, batches)[2::2]:  # after every layer
        for number, metric in enumerate(find(_ESTIMATORS)):
            value = metric.values(cloud_of(rows, metric.sources, sample=len(rows)))[0].value
            values[number].append(value or 0.0)
    return [fmean(each) for each in values]


def gradient_energies(model: Transformer, ids: Tensor, bases: Sequence[Tensor]) -> list[list[float]]:
    """Return the share of the hidden gradients in a basis, for each group of windows and each layer but the last.

    The gradient of the last state before the final norm is orthogonal to that state by construction.
    """
    energies = []
    for part in ids.tensor_split(GROUPS):
        pairs = zip(_hidden_gradients(model, part)[:-1], bases[:-1], strict=True)
        energies.append([float((g @ q).square().sum() / g.square().sum().clamp(min=1e-30)) for g, q in pairs])
    return energies


def _hidden_gradients(model: Transformer, ids: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the loss in every layer's output, (windows, context, width) each; weights get no gradient."""
    outputs: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _m, _i, out: outputs.append(out)) for block in model.blocks]
    try:
        with torch.enable_grad(), _evaluation(model):
            loss = model(ids, labels=ids).loss
            return torch.autograd.grad(loss, outputs)
    finally:
        for hook in hooks:
            hook.remove()


# --- files --------------------------------------------------------------------------------------------------------


def add_measurement(path: Path, measurement: DemoMeasurement) -> None:
    """Append a measurement to a file of lines."""
    append_lines(path, json.dumps(asdict(measurement)).encode() + b"\n")


def read_measurements(path: Path) -> list[DemoMeasurement]:
    """Read the measurements of a file by step; a line that is being written is ignored."""
    if not path.is_file():
        return []
    by_step: dict[int, DemoMeasurement] = {}
    for line in path.read_text().splitlines():
        try:
            values: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        by_step[values["step"]] = DemoMeasurement(**values)
    return [by_step[step] for step in sorted(by_step)]
