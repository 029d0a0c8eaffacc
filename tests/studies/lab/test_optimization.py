"""Learning rate of a lab training."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from anisoscope.studies.lab.experiment import Experiment, Recipe
from anisoscope.studies.lab.optimization import learning_rate


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = replace(Experiment().recipe, steps=200, warmup=0.1, learning_rate=2.0, floor=0.1)
    rates = [learning_rate(recipe, step) for step in range(201)]
    assert rates.index(max(rates)) in (19, 20)
    assert rates[:20] == pytest.approx(np.linspace(0.1, 2.0, 20))
    assert rates[-1] == pytest.approx(0.2)
    assert all(a >= b for a, b in pairwise(rates[20:]))


def test_the_learning_rate_stays_low_after_its_decay() -> None:
    recipe = Recipe(steps=100, warmup=0.1, learning_rate=1.0, floor=0.02, decay=0.75)
    assert learning_rate(recipe, 74) > 0.02
    assert {round(learning_rate(recipe, step), 9) for step in (75, 80, 100)} == {0.02}
