"""Views of runs and estimates over independent units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import CONTROL, LAB, PUBLISHED, Claim, Evidence
from anisoscope.studies.claims.conditions import Rule
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    by_documents,
    difference,
    estimate,
    estimate_share,
    estimates,
    least_favourable,
)
from anisoscope.studies.claims.runner import CLAIMS, find_claims


def view_of(values: list[float], metric: str = "isoscore", **more: Any) -> RunView:
    """Values from the embedding on."""
    sites = ["embed", *(f"resid.{place}" for place in range(len(values) - 1))]
    return RunView.of([Record(site, metric, value, **more) for site, value in zip(sites, values, strict=True)])


def test_a_share_in_which_all_units_agree_is_not_certain() -> None:
    few, many = Estimate.of_flags([True] * 12), Estimate.of_flags([True] * 80)
    assert few.value == many.value == 1
    assert few.interval[0] < 0.95 < many.interval[0] < 1
    assert Estimate.of_flags([False] * 12).interval[1] > 0.1


def test_a_share_keeps_the_spread_of_its_units_if_that_is_larger() -> None:
    values = [0.1, 0.9, 0.2, 0.8]
    assert Estimate.over(values).of_answers(4000) == Estimate.over(values)
    assert Estimate(0.5, None, 1).of_answers(10).error is None


def test_answers_of_all_seeds_are_counted_and_those_of_documents_once() -> None:
    flags = [0.3, 0.4, 0.5, 0.6]

    def high(r: RunView) -> list[bool]:
        return [value > 0.2 for value in r.profile("isoscore")]

    seeds = Units(tuple(view_of(flags) for _ in range(5)))
    assert estimate_share(high, seeds) == Estimate.of_flags([True] * 20).__class__(
        1.0, Estimate(1.0, 0.0, 5).of_answers(20).error, 5
    )
    documents = Units(tuple(view_of(flags) for _ in range(5)), "documents", view_of(flags))
    assert estimate_share(high, documents).error == Estimate(1.0, 0.0, 5).of_answers(4).error


@pytest.mark.parametrize(("value", "error"), [(math.nan, 0.1), (math.inf, 0.1), (0.5, math.nan)])
def test_a_quantity_that_is_not_finite_counts_as_not_measured(value: float, error: float) -> None:
    """It used to end in a record that cannot be written."""
    claim = find_claims(["S4"])[0]
    verdict = judge(claim, Evidence("r", LAB, {"over_global": Estimate(value, error, 5)}))[0]
    assert verdict.outcome == "untestable here"
    assert "not measured" in verdict.reason
    assert verdict.to_record().value is None


def test_a_number_without_replicates_has_no_error_over_documents(tmp_path: Path) -> None:
    """It used to be the same in every part: an interval of no width, and a firm verdict from it."""
    with Run.create(tmp_path / "run", {"unit": "documents"}) as run:
        records = [Record("embed", "isoscore", 0.5), Record("embed", "tyler_share", 0.7)]
        run.append(records, replicates=[(0.4, 0.5, 0.6), None])
    units = by_documents(Run.open(tmp_path / "run"))
    assert estimate(lambda r: r.mean("isoscore"), units).error == pytest.approx(0.1155, abs=1e-3)
    with pytest.raises(Missing):
        estimate(lambda r: r.mean("tyler_share"), units)


def test_the_least_favourable_of_several_models_counts() -> None:
    bells = [{"bell": Estimate(0.3, 0.1, 5)}, {"bell": Estimate(0.1, 0.1, 5)}, {"range": Estimate(0.05, 0.1, 5)}]
    found = least_favourable([*bells, {"range": Estimate(0.4, 0.1, 5)}], highest=["range"])
    assert {name: each.value for name, each in found.items()} == {"bell": 0.1, "range": 0.4}


def rule_of(claim: Claim, line: str) -> Rule:
    return claim.published if line == PUBLISHED else claim.control


def alternatives() -> Iterator[tuple[Claim, str, int]]:
    for claim in CLAIMS:
        for line in (PUBLISHED, CONTROL):
            for place in range(len(rule_of(claim, line))):
                yield claim, line, place


EVERY = [pytest.param(*each, id="-".join(map(str, (each[0].id, *each[1:])))) for each in alternatives()]


def record(site: str, value: float | None, metric: str = "isoscore", **more: object) -> Record:
    return Record(site, metric, value, **more)  # type: ignore[arg-type]


def test_a_profile_ends_with_the_state_after_the_norm() -> None:
    reading = RunView.of(
        [
            *(record("final", 4.0), record("embed", 0.0), record("resid.1", 2.0), record("resid.0", 1.0)),
            *(record("resid.0", 9.0, tokens="no-sink"), record("grad.resid.0", 9.0)),
        ]
    )
    assert reading.profile("isoscore") == [0.0, 1.0, 4.0]
    assert RunView.of([record("embed", 0.0), record("resid.0", 1.0)]).profile("isoscore") == [0.0, 1.0]


def test_a_missing_number_gives_its_reason_and_no_quantity() -> None:
    reading = RunView.of([record("embed", None, note="too few rows")])
    with pytest.raises(Missing, match="too few rows"):
        reading.profile("isoscore")
    units = Units((reading, reading, reading))
    found = estimates(
        {"x": lambda: estimate(lambda r: r.profile("isoscore")[0], units), "y": lambda: Estimate(1, 0, 3)}
    )
    assert list(found) == ["y"]


def test_spreads_over_batches_are_not_values() -> None:
    reading = RunView.of(
        [record("embed", 1.0), record("embed", 5.0, variant={"over": "batches", "of batches": "mean"})]
    )
    assert reading.profile("isoscore") == [1.0]
    assert reading.find("isoscore", over="batches")[0].value == 5.0


def test_statistics_of_two_measurements_are_paired_by_seed() -> None:
    a = Units(tuple(RunView.of([record("embed", seed + 1.0)]) for seed in range(4)))
    b = Units(tuple(RunView.of([record("embed", float(seed))]) for seed in range(4)))
    found = estimate(lambda x, y: x.profile("isoscore")[0] - y.profile("isoscore")[0], a, b)
    assert (found.value, found.error, found.n) == (1.0, 0.0, 4)
    assert difference(Estimate(2, 3.0, 5), Estimate(1, 4.0, 4)) == Estimate(1, 5.0, 4)


def test_documents_give_the_error_of_a_statistic_of_several_numbers(tmp_path: Path) -> None:
    values = {"embed": [1.0, 2.0, 4.0, 3.0], "resid.0": [2.0, 1.0, 0.0, 5.0]}
    with Run.create(tmp_path / "run", {"unit": "documents"}) as run:
        for site, each in values.items():
            without = [float(np.delete(each, place).mean()) for place in range(4)]
            run.append([record(site, float(np.mean(each)))], [without])
    units = by_documents(Run.open(tmp_path / "run"))
    found = estimate(lambda r: r.profile("isoscore")[1] - r.profile("isoscore")[0], units)
    gaps = np.subtract(values["resid.0"], values["embed"])
    assert found.value == pytest.approx(gaps.mean())
    assert (found.n, found.unit) == (4, "documents")
    assert found.error == pytest.approx(scipy.stats.sem(gaps))
