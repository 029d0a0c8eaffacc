"""Effects of switches, against least squares and against planted effects."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from anisoscope.studies.lab.effects import CellValue, Effect, effects

VALUES = {"attention": ["softmax", "uniform"], "text": ["topics", "zipf", "docstrings"], "norm": ["layer", "rms"]}
SEEDS = 5


def planted(noise: float, seeds: int = SEEDS) -> list[CellValue]:
    """Uniform attention adds 2, zipf takes 1, both together add another 0.5; every seed has an offset of its own."""
    chance = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        offset = chance.normal(scale=10)
        for attention, text, norm in product(*VALUES.values()):
            uniform, zipf = attention == "uniform", text == "zipf"
            value = offset + 2 * uniform - zipf + 0.5 * (uniform and zipf) + noise * chance.normal()
            rows.append(CellValue({"attention": attention, "text": text, "norm": norm}, seed, float(value)))
    return rows


def by_name(found: list[Effect]) -> dict[str, Effect]:
    return {str(effect): effect for effect in found}


def test_planted_effects_are_found_with_their_signs() -> None:
    found = by_name(effects(planted(noise=0.0), VALUES))
    # the interaction is present in one of three texts, and in one of two kinds of attention
    expected = {
        "attention: softmax → uniform": 2 + 0.5 / 3,
        "text: topics → zipf": -1 + 0.5 / 2,
        "text: topics → docstrings": 0.0,
        "norm: layer → rms": 0.0,
        "attention: softmax → uniform × text: topics → zipf": 0.5,
        "attention: softmax → uniform × text: topics → docstrings": 0.0,
        "attention: softmax → uniform × norm: layer → rms": 0.0,
        "text: topics → zipf × norm: layer → rms": 0.0,
        "text: topics → docstrings × norm: layer → rms": 0.0,
    }
    assert list(found) == list(expected)
    # numbers near 30 are rounded to 2^-48, and a contrast adds at most 24 of them
    values = {name: effect.estimate.value for name, effect in found.items() if effect.estimate is not None}
    assert values == pytest.approx(expected, abs=24 * 2**-48)


def test_effects_equal_the_coefficients_of_least_squares() -> None:
    """Two switches with two values each, coded −½ and +½, so that the coefficients are the effects."""
    two = {name: VALUES[name] for name in ("attention", "norm")}
    rows = [row for row in planted(noise=0.3) if row.switches["text"] == "zipf"]
    design = []
    for row in rows:
        a, b = (two[name].index(row.switches[name]) - 0.5 for name in two)
        design.append([a, b, a * b, *(float(row.seed == seed) for seed in range(SEEDS))])
    coefficients = np.linalg.lstsq(np.array(design), np.array([row.value for row in rows]), rcond=None)[0]
    found = [effect.estimate.value for effect in effects(rows, two) if effect.estimate is not None]
    assert found == pytest.approx(coefficients[:3].tolist(), abs=1e-12)
    assert found[0] > 1  # a reversed sign would give −2.5


def test_the_interval_of_a_main_effect_is_that_of_a_paired_t_test() -> None:
    rows = planted(noise=0.3)
    mean = {
        (attention, seed): np.mean([r.value for r in rows if r.switches["attention"] == attention and r.seed == seed])
        for attention in VALUES["attention"]
        for seed in range(SEEDS)
    }
    first, other = ([mean[attention, seed] for seed in range(SEEDS)] for attention in VALUES["attention"])
    expected = stats.ttest_rel(other, first).confidence_interval(0.95)
    interval = effects(rows, VALUES)[0].interval
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert interval is not None
    assert interval[0] > 0  # the offsets of the seeds, 10 wide, cancel


def test_intervals_of_effects_that_do_not_exist_miss_zero_in_five_of_a_hundred_cases() -> None:
    chance = np.random.default_rng(1)
    values = {"a": ["0", "1"], "b": ["0", "1"]}
    missed, trials = 0, 400
    for _ in range(trials):
        rows = [
            CellValue({"a": a, "b": b}, seed, float(chance.normal()))
            for seed in range(3)
            for a, b in product(*values.values())
        ]
        interval = effects(rows, values)[-1].interval
        assert interval is not None
        missed += not interval[0] < 0 < interval[1]
    assert abs(missed / trials - 0.05) < 4 * math.sqrt(0.05 * 0.95 / trials)  # four standard errors


def test_fewer_than_three_seeds_give_a_value_and_a_reason_instead_of_an_interval() -> None:
    effect = effects(planted(noise=0.0, seeds=2), VALUES)[0]
    assert effect.estimate is not None
    assert effect.interval is None
    assert effect.reason == "an interval needs 3 seeds with a value in every model, not 2"
    row = json.loads(json.dumps(effect.to_json()))
    assert (row["effect"], row["low"], row["high"], row["seeds"]) == ("main", None, None, 2)


def test_a_seed_that_lacks_a_value_does_not_count() -> None:
    rows = planted(noise=0.0)
    lacking = [CellValue(r.switches, r.seed, None if n == 0 else r.value) for n, r in enumerate(rows)]
    assert [e.estimate.n for e in effects(lacking, VALUES) if e.estimate is not None] == [SEEDS - 1] * 9
    assert effects(lacking, VALUES)[0].reason is None
    none = [CellValue(r.switches, r.seed, None) for r in rows]
    assert effects(none, VALUES)[0] == Effect(
        {"attention": ("softmax", "uniform")}, None, "no seed has a value in every model"
    )
    assert "not 2 of 3" in str(effects([*lacking[:24], *rows[24:36]], VALUES)[0].reason)
