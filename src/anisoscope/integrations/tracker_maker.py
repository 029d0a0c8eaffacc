"""What the callbacks share: a tracker is made when training starts, and its options are checked before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.errors import unknown
from anisoscope.tracker import Tracker

MakeTracker = Callable[[nn.Module, int | None], Tracker]


def tracker_maker(probe: Any, out: str | Path, options: Mapping[str, Any]) -> MakeTracker:
    """Return a function from a model and the step that training resumes at to its tracker.

    Args:
        probe: A held-out batch, as for `Tracker`.
        out: The folder of the run.
        options: Other arguments of `Tracker`.

    Raises:
        InputError: An option does not exist; the nearest names are suggested.
    """
    known = [name for name in inspect.signature(Tracker).parameters if name not in ("model", "probe", "out")]
    for name in options:
        if name not in known:
            raise unknown("option", name, known)
    return lambda model, resume: Tracker(model, probe, out, **{"resume": resume, **options})
