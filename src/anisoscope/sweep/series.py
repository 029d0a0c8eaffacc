"""A series of checkpoints: its problems, and downloading the next one while this one is measured."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import fetch

_SKETCH = 512  # weights of a model that show how far it has moved
_NEARER = 0.75  # of a squared distance: in a walk without memory, two steps on is twice as far as one


@dataclass(frozen=True)
class SeriesProblem:
    """A problem of a series, as text; `left_out` is the checkpoint that is not measured because of it."""

    text: str
    left_out: Checkpoint | None = None


def broken(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Return the checkpoints that cannot be opened: a missing shard, a truncated file."""
    return [
        SeriesProblem(f"step {c.step} ({c.label}) is left out: {c.problem}", left_out=c)
        for c in series
        if c.problem is not None
    ]


def repeated(series: Sequence[Checkpoint], contents: Sequence[str | None]) -> list[SeriesProblem]:
    """Return steps that occur twice, and steps whose weights equal those of an earlier one: a copy, not a plateau."""
    problems: list[SeriesProblem] = []
    steps: dict[int, Checkpoint] = {}
    weights: dict[str, Checkpoint] = {}
    for checkpoint, content in zip(series, contents, strict=True):
        if checkpoint.problem is not None or content is None:
            continue
        name = f"step {checkpoint.step} ({checkpoint.label})"
        if checkpoint.step in steps:
            why = f"{steps[checkpoint.step].label} is step {checkpoint.step} too"
            problems.append(SeriesProblem(f"{name} is left out: {why}", left_out=checkpoint))
        elif content in weights:
            problems.append(copied(checkpoint, weights[content]))
        steps.setdefault(checkpoint.step, checkpoint)
        weights.setdefault(content, checkpoint)
    return problems


def copied(checkpoint: Checkpoint, earlier: Checkpoint) -> SeriesProblem:
    """Describe a checkpoint that holds the weights of another one."""
    name = f"step {checkpoint.step} ({checkpoint.label})"
    text = f"{name} is left out: its weights are those of step {earlier.step} ({earlier.label}), bit for bit"
    return SeriesProblem(text, left_out=checkpoint)


def not_finite(checkpoint: Checkpoint, where: Mapping[str, Any]) -> SeriesProblem:
    """Describe a checkpoint whose activations are not numbers from some site on."""
    reason = f"from {where['site']} on, {where['rows']} tokens hold NaN or Inf, so these layers have no values"
    return SeriesProblem(f"step {checkpoint.step} ({checkpoint.label}): {reason}")


def gaps(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Return the missing steps of a regular series: a gap of k times the spacing on both of its sides.

    Spacing is a difference (1000, 2000, 4000, 5000 lacks 3000) or a ratio (1, 2, 8, 16 lacks 4).
    """
    steps = sorted({checkpoint.step for checkpoint in series})
    problems = []
    for index in range(len(steps) - 1):
        missing = _missing(steps, index) or _missing_ratio(steps, index)
        if missing:
            names = ", ".join(map(str, missing[:4])) + (" and more" if len(missing) > 4 else "")
            between = f"between steps {steps[index]} and {steps[index + 1]}"
            problems.append(SeriesProblem(f"{between} a regular series would have {names}: missing"))
    return problems


def misnumbered(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Return checkpoints whose recorded step (trainer_state.json, config.json) differs from that in their name."""
    problems = []
    for checkpoint in series:
        recorded = _recorded_step(Path(checkpoint.source))
        if recorded is not None and recorded != checkpoint.step and len(series) > 1:
            text = f"{checkpoint.label} records step {recorded}; it is measured as step {checkpoint.step}"
            problems.append(SeriesProblem(text))
    return problems


def out_of_order(sketches: Mapping[int, Sequence[float]]) -> list[SeriesProblem]:
    """Return steps farther from the previous step than the next one is: swapped, or from another model.

    Training moves away: ‖w(i+2) − w(i)‖ is larger than ‖w(i+1) − w(i)‖, on a sample of the weights as well.
    """
    steps = sorted(sketches)
    points = [torch.tensor(sketches[step], dtype=torch.float64) for step in steps]
    problems = []
    for a, b, c in zip(range(len(steps)), range(1, len(steps)), range(2, len(steps)), strict=False):
        if points[a].shape != points[b].shape or points[a].shape != points[c].shape:
            continue
        near, far = _square(points[a], points[b]), _square(points[a], points[c])
        if far < _NEARER * near:
            text = f"the weights of step {steps[b]} are farther from step {steps[a]} than those of step {steps[c]}"
            problems.append(SeriesProblem(f"{text}: steps may be out of order, or one may be from another model"))
    return problems


def sketch(model: nn.Module) -> list[float]:
    """Return a few hundred weights, the same ones at every checkpoint: enough to see how far the model has moved."""
    weights = [p.detach() for p in model.parameters() if p.is_floating_point() and p.numel()]
    each = max(1, _SKETCH // max(1, len(weights)))
    numbers: list[float] = []
    for weight in weights[:_SKETCH]:
        # float32 cannot count beyond 2^24, and would round the last place of a large weight out of bounds
        positions = torch.linspace(0, weight.numel() - 1, min(each, weight.numel()), dtype=torch.float64).long()
        numbers += weight.reshape(-1)[positions.to(weight.device)].float().tolist()
    return [float(f"{number:.6g}") for number in numbers]


@contextmanager
def fetching(checkpoint: Checkpoint | None, opening: Mapping[str, Any]) -> Iterator[None]:
    """Download the next checkpoint meanwhile, and read its weights into the system's file cache.

    Files, not the model itself: opening a model changes settings of the whole process (its default dtype among them),
    which the measurement that is running would see.
    """
    if checkpoint is None:
        yield
        return
    options = {"allow_pickle": bool(opening.get("allow_pickle")), "remote_code": bool(opening.get("trust_remote_code"))}

    def work() -> None:
        try:
            fetch(checkpoint.source, checkpoint.revision, **options)
        except (AnisoscopeError, OSError):
            return  # measuring that checkpoint will report the problem

    thread = threading.Thread(target=work, name="anisoscope-fetch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _missing(steps: Sequence[int], index: int) -> list[int]:
    spacing = _shared([b - a for a, b in pairwise(steps)], index)
    gap = steps[index + 1] - steps[index]
    if spacing is None or gap == spacing or gap % spacing:
        return []
    return list(range(steps[index] + spacing, steps[index + 1], spacing))


def _missing_ratio(steps: Sequence[int], index: int) -> list[int]:
    ratios = [b // a if a > 0 and b % a == 0 else 0 for a, b in pairwise(steps)]
    ratio = _shared(ratios, index)
    if ratio is None or ratio < 2 or ratios[index] in (0, ratio):  # 0: no whole ratio, as after step 0
        return []
    missing, step = [], steps[index] * ratio
    while step < steps[index + 1]:
        missing.append(step)
        step *= ratio
    return missing if step == steps[index + 1] else []


def _shared(gaps: Sequence[int], index: int) -> int | None:
    """The spacing on both sides of a gap, or of the two gaps after (before) it if it is the first (the last)."""
    sides = [index - 1, index + 1]
    if index == 0:
        sides = [1, 2]
    elif index == len(gaps) - 1:
        sides = [index - 2, index - 1]
    if not all(0 <= side < len(gaps) for side in sides):
        return None
    first, second = (gaps[side] for side in sides)
    return first if first == second and first > 0 else None


def _recorded_step(index: Path) -> int | None:
    for name, field in (("trainer_state.json", "global_step"), ("config.json", "step")):
        try:
            recorded = json.loads((index / name).read_text()).get(field)
        except (OSError, ValueError, AttributeError):
            continue
        if type(recorded) is int:
            return recorded
    return None


def _square(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().sum())
