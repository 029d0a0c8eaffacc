"""The power of a rule: its verdicts on simulated worlds in which the claim holds, and in which it does not.

Each quantity of a world has the true value that its condition declares (`holds` or `fails`), and as many units with the
same spread as the evidence. The same judge runs on every world. So the result refers to this evidence: its seeds, its
noise, its thresholds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from anisoscope.stats.inference import t_quantile
from anisoscope.studies.claims.claim import Evidence, Power, measured
from anisoscope.studies.claims.conditions import ALPHA, EFFECT, Condition, Rule, effects
from anisoscope.studies.claims.estimate import FEWEST, Estimate

REPETITIONS = 200
Flags = np.ndarray[Any, np.dtype[np.bool_]]
_LEAST_SPREAD = 1e-9  # of units that all agree


def power_of(rule: Rule, evidence: Evidence, repetitions: int = REPETITIONS) -> Power | None:
    """Return how often the rule is right in simulated worlds at the noise of this evidence.

    Gates are taken as met: power is a property of the test, if it can be made at all. A rule with alternatives is
    simulated for the first alternative whose quantities were measured.

    Args:
        rule: The rule of one line, with its gates.
        evidence: The evidence, whose units and errors are used.
        repetitions: Number of worlds of each kind.

    Returns:
        None if an effect of the rule was not measured, or has too few units for an interval.
    """
    for conditions in rule:
        wanted = [c for c in conditions if not c.gate and c.name not in evidence.left_out]
        estimates = {c.name: measured(c, evidence) for c in wanted}
        usable = {name: each for name, each in estimates.items() if each is not None and _has_spread(each)}
        if wanted and len(usable) == len(estimates):
            return _simulated(tuple(wanted), usable, repetitions)
    return None


def _has_spread(estimate: Estimate) -> bool:
    return not estimate.is_exact and estimate.error is not None and estimate.n >= FEWEST


def _simulated(conditions: tuple[Condition, ...], units: Mapping[str, Estimate], repetitions: int) -> Power:
    seed = zlib.crc32(" ".join(condition.name for condition in conditions).encode())
    random = np.random.default_rng(seed)
    held, _ = _verdicts(conditions, units, random, repetitions, holds=True)
    false, refuted = _verdicts(conditions, units, random, repetitions, holds=False)
    return Power(float(held.mean()), float(false.mean()), float(refuted.mean()))


def _verdicts(
    conditions: tuple[Condition, ...],
    units: Mapping[str, Estimate],
    random: np.random.Generator,
    repetitions: int,
    *,
    holds: bool,
) -> tuple[Flags, Flags]:
    """Which worlds are judged reproduced and which not, (repetitions,) each: `outcome_of` for all worlds at once."""
    truth = _truth(conditions, holds)
    worlds = {name: _world(estimate, truth[name], random, repetitions) for name, estimate in units.items()}
    number = effects(conditions)
    reproduced, refuted = np.ones(repetitions, bool), np.zeros(repetitions, bool)
    for condition in conditions:
        sign = 1.0 if condition.above else -1.0
        mean, error = worlds[condition.name]
        degrees = units[condition.name].n - 1
        margin = sign * (mean - condition.threshold)
        reproduced &= margin - t_quantile(0.975, degrees) * error > 0
        if condition.kind == EFFECT:
            refuted |= margin + t_quantile(1 - ALPHA / number / 2, degrees) * error <= 0
    return reproduced, refuted


def _truth(conditions: tuple[Condition, ...], holds: bool) -> dict[str, float]:
    """The true value of each quantity; one that lies between two thresholds has the mean of both declared values."""
    values: dict[str, list[float]] = {}
    for condition in conditions:
        values.setdefault(condition.name, []).append(condition.holds if holds else condition.fails)
    return {name: sum(each) / len(each) for name, each in values.items()}


def _world(estimate: Estimate, truth: float, random: np.random.Generator, repetitions: int) -> tuple[Any, Any]:
    """Mean and standard error of a quantity in every world: as many units with the same spread about the truth."""
    spread = max(_LEAST_SPREAD, (estimate.error or 0.0) * math.sqrt(estimate.n))
    drawn = random.normal(truth, spread, (repetitions, estimate.n)).clip(*estimate.within)
    return drawn.mean(1), drawn.std(1, ddof=1) / math.sqrt(estimate.n)
