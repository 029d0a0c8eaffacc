"""Mean and deviation over batches of tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError
from anisoscope.models.open import Opened, open_model

Values = dict[tuple[Any, ...], float]


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


def test_the_spread_over_batches_equals_that_of_batches_measured_alone(folder: Path, text: Path) -> None:
    options: dict[str, Any] = {"metrics": ["mean_cosine"], "sites": ["resid.0"], "window": 32, "errors": False}
    run = anisoscope.measure(folder, text=text, tokens=256, batch_tokens=64, **options)
    found = {r.variant.get("of batches"): r for r in run.records() if r.tokens == "all"}
    opened = open_model(folder)
    each = [
        values(anisoscope.measure(opened, [batch], **options), tokens="all")["resid.0", "mean_cosine", "all", None]
        for batch in _pairs_of_windows(opened, text)
    ]
    mean = sum(each) / len(each)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in each) / (len(each) - 1))
    assert len(each) == 4
    assert found["mean"].value == pytest.approx(mean, abs=1e-6)
    assert found["mean"].error == pytest.approx(deviation / 2, abs=1e-6)
    assert found["std"].value == pytest.approx(deviation, abs=1e-6)
    with pytest.raises(InputError, match="measure at least 256"):
        anisoscope.measure(folder, text=text, tokens=200, batch_tokens=128, **options)


def _pairs_of_windows(opened: Opened, text: Path) -> list[Any]:
    return list(model_batches(opened, text, window=32, batch=2, tokens=256))[:4]
