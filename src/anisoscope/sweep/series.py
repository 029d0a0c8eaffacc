"""A series of checkpoints: whether it is what it says, and the next one fetched while this one is measured."""

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

_SKETCH = 512  # numbers of a model that tell how far it has moved
_NEARER = 0.75  # of a squared distance: in a walk without memory, two steps on is twice as far as one


@dataclass(frozen=True)
class SeriesProblem:
    """Something that is wrong with a series, in words; `left_out` is the checkpoint that is not measured for it."""

    text: str
    left_out: Checkpoint | None = None


def broken(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Checkpoints that cannot be opened: a shard that is missing, a file that is cut short."""
    return [
        SeriesProblem(f"step {c.step} ({c.label}) is left out: {c.problem}", left_out=c)
        for c in series
        if c.problem is not None
    ]


def repeated(series: Sequence[Checkpoint], contents: Sequence[str | None]) -> list[SeriesProblem]:
    """Steps that are there twice, and steps whose weights are those of an earlier one: no plateau, a copy."""
    found: list[SeriesProblem] = []
    steps: dict[int, Checkpoint] = {}
    weights: dict[str, Checkpoint] = {}
    for checkpoint, content in zip(series, contents, strict=True):
        if checkpoint.problem is not None or content is None:
            continue
        name = f"step {checkpoint.step} ({checkpoint.label})"
        if checkpoint.step in steps:
            why = f"{steps[checkpoint.step].label} is step {checkpoint.step} too"
            found.append(SeriesProblem(f"{name} is left out: {why}", left_out=checkpoint))
        elif content in weights:
            found.append(copied(checkpoint, weights[content]))
        steps.setdefault(checkpoint.step, checkpoint)
        weights.setdefault(content, checkpoint)
    return found


def copied(checkpoint: Checkpoint, earlier: Checkpoint) -> SeriesProblem:
    """What is said of a checkpoint that holds the weights of another one."""
    name = f"step {checkpoint.step} ({checkpoint.label})"
    text = f"{name} is left out: its weights are those of step {earlier.step} ({earlier.label}), to the bit"
    return SeriesProblem(text, left_out=checkpoint)


def not_finite(checkpoint: Checkpoint, where: Mapping[str, Any]) -> SeriesProblem:
    """What is said of a checkpoint whose activations are no numbers from some site on."""
    said = f"from {where['site']} on, {where['rows']} tokens hold NaN or Inf, so these layers have no values"
    return SeriesProblem(f"step {checkpoint.step} ({checkpoint.label}): {said}")


def gaps(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Steps that are missing from a regular series: a gap of k times the spacing that holds on both its sides.

    Spacing is a difference (1000, 2000, 4000, 5000 lacks 3000) or a ratio (1, 2, 8, 16 lacks 4).
    """
    steps = sorted({checkpoint.step for checkpoint in series})
    found = []
    for place in range(len(steps) - 1):
        missing = _missing(steps, place) or _missing_ratio(steps, place)
        if missing:
            names = ", ".join(map(str, missing[:4])) + (" and more" if len(missing) > 4 else "")
            between = f"between steps {steps[place]} and {steps[place + 1]}"
            found.append(SeriesProblem(f"{between} a regular series would have {names}: missing"))
    return found


def misnumbered(series: Sequence[Checkpoint]) -> list[SeriesProblem]:
    """Checkpoints whose own account of their step (trainer_state.json, a lab's config.json) is not their name's."""
    found = []
    for checkpoint in series:
        said = _said_step(Path(checkpoint.source))
        if said is not None and said != checkpoint.step and len(series) > 1:
            text = f"{checkpoint.label} says of itself that it is step {said}; it is measured as step {checkpoint.step}"
            found.append(SeriesProblem(text))
    return found


def out_of_order(sketches: Mapping[int, Sequence[float]]) -> list[SeriesProblem]:
    """Steps that lie farther from the step before than the step after does: two were swapped, or one is another's.

    Training moves away: ‖w(i+2) − w(i)‖ is larger than ‖w(i+1) − w(i)‖, on a sample of the weights as well.
    """
    steps = sorted(sketches)
    points = [torch.tensor(sketches[step], dtype=torch.float64) for step in steps]
    found = []
    for a, b, c in zip(range(len(steps)), range(1, len(steps)), range(2, len(steps)), strict=False):
        if points[a].shape != points[b].shape or points[a].shape != points[c].shape:
            continue
        near, far = _square(points[a], points[b]), _square(points[a], points[c])
        if far < _NEARER * near:
            text = f"the weights of step {steps[b]} lie farther from step {steps[a]} than those of step {steps[c]} do"
            found.append(SeriesProblem(f"{text}: steps may be out of order, or one may be another model's"))
    return found


def sketch(model: nn.Module) -> list[float]:
    """A few hundred of a model's weights, the same ones at every checkpoint: enough to tell how far it has moved."""
    weights = [p.detach() for p in model.parameters() if p.is_floating_point() and p.numel()]
    each = max(1, _SKETCH // max(1, len(weights)))
    numbers: list[float] = []
    for weight in weights[:_SKETCH]:
        places = torch.linspace(0, weight.numel() - 1, min(each, weight.numel())).long()
        numbers += weight.reshape(-1)[places.to(weight.device)].float().tolist()
    return [float(f"{number:.6g}") for number in numbers]


@contextmanager
def fetching(checkpoint: Checkpoint | None, opening: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile the next checkpoint is downloaded and its weights are read into the system's cache of files.

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
            return  # whoever measures that checkpoint will say what is wrong with it

    thread = threading.Thread(target=work, name="anisoscope-fetch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _missing(steps: Sequence[int], place: int) -> list[int]:
    spacing = _shared([b - a for a, b in pairwise(steps)], place)
    gap = steps[place + 1] - steps[place]
    if spacing is None or gap == spacing or gap % spacing:
        return []
    return list(range(steps[place] + spacing, steps[place + 1], spacing))


def _missing_ratio(steps: Sequence[int], place: int) -> list[int]:
    ratios = [b // a if a > 0 and b % a == 0 else 0 for a, b in pairwise(steps)]
    ratio = _shared(ratios, place)
    if ratio is None or ratio < 2 or ratios[place] in (0, ratio):  # 0: no whole ratio, as after step 0
        return []
    missing, step = [], steps[place] * ratio
    while step < steps[place + 1]:
        missing.append(step)
        step *= ratio
    return missing if step == steps[place + 1] else []


def _shared(gaps: Sequence[int], place: int) -> int | None:
    """The spacing on both sides of a gap, or of the two gaps behind (before) it where it is the first (the last)."""
    sides = [place - 1, place + 1]
    if place == 0:
        sides = [1, 2]
    elif place == len(gaps) - 1:
        sides = [place - 2, place - 1]
    if not all(0 <= side < len(gaps) for side in sides):
        return None
    first, second = (gaps[side] for side in sides)
    return first if first == second and first > 0 else None


def _said_step(place: Path) -> int | None:
    for name, field in (("trainer_state.json", "global_step"), ("config.json", "step")):
        try:
            said = json.loads((place / name).read_text()).get(field)
        except (OSError, ValueError, AttributeError):
            continue
        if type(said) is int:
            return said
    return None


def _square(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().sum())
