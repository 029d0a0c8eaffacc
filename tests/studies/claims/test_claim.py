"""The rule that judges, the statistics that it judges, and evidence that is turned around."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.stats.inference import bell, spearman, spearman_p
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import (
    CONTROL,
    INCONCLUSIVE,
    LAB,
    MODEL,
    NOT_REPRODUCED,
    PUBLISHED,
    REPRODUCED,
    Claim,
    Condition,
    Estimate,
    Evidence,
    Rule,
    Verdict,
    above,
    below,
    either,
    every,
    gate,
    judge,
    unjudged,
)
from anisoscope.studies.claims.curve_shapes import (
    fall,
    half_time,
    parallel_drift,
    partial_slope,
    peak,
    rise,
    slope,
    span,
)
from anisoscope.studies.claims.hidden_states import cosines_before_rotation, entropies, mean_cosine
from anisoscope.studies.claims.run_sizes import SIZES, cells
from anisoscope.studies.claims.run_view import Missing, RunView, Units, by_documents, difference, estimate, estimates
from anisoscope.studies.claims.runner import CLAIMS, cost, find_claims, find_size
from anisoscope.studies.claims.untrained_block import PUBLISHED as BERT
from anisoscope.studies.claims.untrained_block import BlockSetting, pass_through_block
from anisoscope.studies.lab.transformer import Config, Transformer
from tests.oracles.metrics import mean_cosine as slow_cosine


def rule_of(claim: Claim, line: str) -> Rule:
    return claim.published if line == PUBLISHED else claim.control


def verdict_of(
    claim: Claim, line: str, values: Mapping[str, float], error: float = 0.01, scale: str = MODEL
) -> Verdict:
    """The verdict on a line whose quantities have these values, each over ten units."""
    found = {name: Estimate(value, error, 10) for name, value in values.items()}
    return judge(claim, Evidence("made up", scale, found))[line == CONTROL]


def firm(condition: Condition, holds: bool) -> float:
    """A value far on one side of the threshold."""
    far = 1 + abs(condition.threshold)
    return condition.threshold + (far if condition.above == holds else -far)


def holding(conditions: tuple[Condition, ...]) -> dict[str, float]:
    """Values with which all of these conditions hold; two thresholds on one quantity are met in the middle."""
    by_name: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_name.setdefault(condition.name, []).append(condition)
    return {
        name: firm(those[0], True) if len(those) == 1 else sum(c.threshold for c in those) / len(those)
        for name, those in by_name.items()
    }


def completed(
    rule: Rule, place: int, fixed: dict[str, float], wanted: str, claim: Claim, line: str
) -> dict[str, float]:
    """The fixed values, and values for the quantities of other alternatives that give the outcome wanted."""
    free = sorted({c.name for alternative in rule for c in alternative} - set(fixed))
    for signs in itertools.product((-9.0, 9.0), repeat=len(free)):
        values = {**fixed, **dict(zip(free, signs, strict=True))}
        if verdict_of(claim, line, values).outcome == wanted:
            return values
    raise AssertionError(f"{claim.id}, {line}: no evidence gives {wanted}")


def alternatives() -> Iterator[tuple[Claim, str, int]]:
    for claim in CLAIMS:
        for line in (PUBLISHED, CONTROL):
            for place in range(len(rule_of(claim, line))):
                yield claim, line, place


EVERY = [pytest.param(*each, id="-".join(map(str, (each[0].id, *each[1:])))) for each in alternatives()]


# --- every claim's evidence, turned around ------------------------------------------------------------------------


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_evidence_for_a_claim_reproduces_it(claim: Claim, line: str, place: int) -> None:
    rule = rule_of(claim, line)
    found = verdict_of(claim, line, holding(rule[place]))  # what other alternatives ask for is not measured
    assert found.outcome == REPRODUCED
    assert found.effect is not None
    assert found.effect.value in holding(rule[place]).values()


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_turning_any_one_quantity_around_turns_the_verdict(claim: Claim, line: str, place: int) -> None:
    rule = rule_of(claim, line)
    for condition in rule[place]:
        turned = {**holding(rule[place]), condition.name: firm(condition, False)}
        wanted = INCONCLUSIVE if condition.gate else NOT_REPRODUCED
        values = completed(rule, place, turned, wanted, claim, line)
        found = verdict_of(claim, line, values)
        assert found.outcome == wanted
        assert condition.description in found.reason


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_a_quantity_whose_interval_spans_its_threshold_leaves_the_claim_open(
    claim: Claim, line: str, place: int
) -> None:
    conditions = rule_of(claim, line)[place]
    for condition in conditions:
        values = {**holding(conditions), condition.name: condition.threshold}
        assert verdict_of(claim, line, values).outcome == INCONCLUSIVE


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_what_was_not_measured_leaves_the_claim_open(claim: Claim, line: str, place: int) -> None:
    conditions = rule_of(claim, line)[place]
    for condition in conditions:
        values = {name: value for name, value in holding(conditions).items() if name != condition.name}
        found = verdict_of(claim, line, values)
        assert found.outcome == INCONCLUSIVE
        assert "not measured" in found.reason
        assert claim.settle in found.reason


def test_the_claims_are_those_of_the_papers() -> None:
    wanted = [f"{paper}{n}" for paper, count in (("T", 7), ("S", 6), ("A", 6), ("N", 5), ("P", 2)) for n in
              range(1, count + 1)]  # fmt: skip
    assert [claim.id for claim in CLAIMS] == wanted
    for claim in CLAIMS:
        assert claim.control
        assert claim.ways
        assert set(claim.cells) <= set(cells(SIZES["tiny"]))
        assert bool(claim.cells) == ("lab" in claim.ways)


def test_a_claim_about_large_models_stays_open_on_the_lab_and_names_what_would_settle_it() -> None:
    (large,) = (claim for claim in CLAIMS if claim.large)
    values = holding(large.published[0])
    assert verdict_of(large, PUBLISHED, values, scale=MODEL).outcome == REPRODUCED
    found = verdict_of(large, PUBLISHED, values, scale=LAB)
    assert found.outcome == INCONCLUSIVE
    assert "pythia-410m" in found.reason


# --- the rule -----------------------------------------------------------------------------------------------------

TOY = Claim("X", "nobody2026", "x is large", {}, every(above("x", 1.0, "x")), (), "measure x", ())


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1.5, 1.6, 1.7, 1.6], REPRODUCED),
        ([0.5, 0.6, 0.7, 0.6], NOT_REPRODUCED),
        ([0.9, 1.2, 1.0, 1.3], INCONCLUSIVE),
        ([9.0, 9.1], INCONCLUSIVE),  # two seeds make no interval
        ([1.0, 1.0, 1.0], NOT_REPRODUCED),  # at the threshold is not beyond it
    ],
)
def test_the_interval_decides(values: list[float], outcome: str) -> None:
    published, _ = judge(TOY, Evidence("toy", LAB, {"x": Estimate.over(values)}))
    assert published.outcome == outcome


def test_below_is_above_turned_around() -> None:
    for value in (-2.0, 0.3, 0.5, 0.7, 2.0):
        estimate = Estimate(value, 0.05, 8)
        turned = Estimate(-value, 0.05, 8)
        assert below("x", 0.5, "").outcome(estimate) == above("x", -0.5, "").outcome(turned)


def test_an_interval_is_student_s() -> None:
    values = [0.2, 0.5, 0.9, 0.4, 0.1]
    low, high = scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values))
    assert Estimate.over(values).interval == pytest.approx((low, high))


def test_a_jackknifed_mean_has_the_error_of_the_mean() -> None:
    values = np.array([0.2, 0.5, 0.9, 0.4, 0.1])
    without = [float(np.delete(values, place).mean()) for place in range(5)]
    made = Estimate.jackknifed(float(values.mean()), without)
    assert made.error == pytest.approx(scipy.stats.sem(values))


def test_one_of_several_alternatives_is_enough() -> None:
    rule = either(every(above("x", 0, "x")), every(above("y", 0, "y")))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    assert verdict_of(claim, PUBLISHED, {"x": -1, "y": 1}).outcome == REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"x": -1, "y": -1}).outcome == NOT_REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"x": -1}).outcome == INCONCLUSIVE


def test_behind_a_closed_gate_nothing_is_decided() -> None:
    claim = Claim("X", "p", "s", {}, every(gate("g", 0, "g"), above("x", 0, "x")), (), "", ())
    assert verdict_of(claim, PUBLISHED, {"g": 1, "x": 1}).outcome == REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"g": 1, "x": -1}).outcome == NOT_REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"g": -1, "x": -1}).outcome == INCONCLUSIVE


def test_what_cannot_be_there_is_left_out_and_said() -> None:
    rule = every(above("x", 0, "the x"), above("y", 0, "the y"))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    found = judge(claim, Evidence("r", MODEL, {"x": Estimate(1, 0.1, 5)}, {"y": "nobody gave one"}))[0]
    assert found.outcome == REPRODUCED
    assert found.reason.startswith("only part of the claim was tested")
    assert "nobody gave one" in found.reason
    nothing = judge(claim, Evidence("r", MODEL, {}, {"x": "none", "y": "none"}))[0]
    assert nothing.outcome == INCONCLUSIVE


def test_a_verdict_is_a_record_that_pages_know() -> None:
    record = verdict_of(TOY, PUBLISHED, {"x": 3.0}).to_record()
    assert (record.site, record.metric, record.value, record.error) == ("vectors", "verdict", 3.0, 0.01)
    assert record.variant == {"claim": "X", "line": "as published", "verdict": "reproduced", "quantity": "x (> 1)"}
    assert record.error_kind == "spread-10-seeds"
    missing = unjudged(TOY, "no weights")[0].to_record()
    assert missing.value is None
    assert "no weights. To settle it: measure x" in str(missing.note)


def test_evidence_survives_the_disk() -> None:
    evidence = Evidence("r", LAB, {"x": Estimate(0.1, 0.2, 3), "y": Estimate(1.0, None, 1, "models")}, {"z": "why"})
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence


# --- shapes of curves ---------------------------------------------------------------------------------------------


def test_a_bell_is_high_in_the_middle_and_a_ramp_is_none() -> None:
    assert bell([0, 0, 1, 1, 0, 0]) == 1
    assert bell([0, 0, 1, 1, 0, 0.5]) == 0.5
    assert bell([0, 1, 2, 3, 4, 5]) < 0
    assert bell([3.0] * 12) == 0
    assert bell([0, 0] + [1] * 8 + [0, 0]) == 1  # twelve layers: thirds of four, ends of two
    assert span([0.2, 0.5, 0.1]) == pytest.approx(0.4)


def test_a_rise_and_fall_is_told_from_a_curve_that_only_rises() -> None:
    hill, ramp = [1.0, 4.0, 2.0], [1.0, 2.0, 4.0]
    assert (peak(hill), rise(hill, peak(hill)), fall(hill, peak(hill))) == (1, 3, 2)
    assert fall(ramp, peak(ramp)) == 0


def test_a_change_is_late_when_its_half_comes_late() -> None:
    steps = [0, 25, 50, 75, 100]
    assert half_time(steps, [0, 0, 0, 0, 1]) == 0.875
    assert half_time(steps, [0, 1, 1, 1, 1]) == 0.125
    assert half_time(steps, [1, 1, 1, 1, 0]) == 0.875
    assert half_time(steps, [2, 2, 2, 2, 2]) == 0


def test_parallel_drift_asks_for_both_in_the_same_head() -> None:
    before = {(0, 0): 0.1, (0, 1): -0.1}
    after = {(0, 0): 0.5, (0, 1): -0.6}
    sharp, even = {(0, 0): 0.4, (0, 1): 0.9}, {(0, 0): 0.8, (0, 1): 0.8}
    assert parallel_drift([before, after], [even, sharp]) == [True, False]
    assert parallel_drift([after, before], [even, sharp]) == [False, False]


def test_rank_correlations_are_scipy_s() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=9).round(1), draw.normal(size=9).round(1)  # rounded: there are ties
    known = scipy.stats.spearmanr(x, y)
    assert spearman(list(x), list(y)) == pytest.approx(known.statistic)
    assert spearman_p(list(x), list(y)) == pytest.approx(known.pvalue)
    assert spearman([1, 2, 3], [5.0, 5.0, 5.0]) == 0


def test_a_slope_at_equal_drift_is_that_of_a_regression() -> None:
    draw = np.random.default_rng(1)
    x, z = draw.normal(size=20), draw.normal(size=20)
    y = 2 * x - 3 * z + 1
    assert partial_slope(list(y), list(x), list(z)) == pytest.approx(2)
    assert slope(list(x), list(2 * x)) == pytest.approx(2)


# --- readings -----------------------------------------------------------------------------------------------------


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


def test_a_missing_number_says_why_and_makes_no_quantity() -> None:
    reading = RunView.of([record("embed", None, note="too few rows")])
    with pytest.raises(Missing, match="too few rows"):
        reading.profile("isoscore")
    units = Units((reading, reading, reading))
    found = estimates(
        {"x": lambda: estimate(lambda r: r.profile("isoscore")[0], units), "y": lambda: Estimate(1, 0, 3)}
    )
    assert list(found) == ["y"]


def test_spreads_over_batches_are_no_second_value() -> None:
    reading = RunView.of(
        [record("embed", 1.0), record("embed", 5.0, variant={"over": "batches", "of batches": "mean"})]
    )
    assert reading.profile("isoscore") == [1.0]
    assert reading.find("isoscore", over="batches")[0].value == 5.0


def test_statistics_of_two_looks_are_paired_by_seed() -> None:
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


# --- an untrained block -------------------------------------------------------------------------------------------


def test_a_bias_makes_the_cosine_that_it_must() -> None:
    seen = pass_through_block((64, 4, 64), 1.0, BERT, seed=0)
    assert seen.cosine_in == pytest.approx(0.5, abs=0.03)  # N = ‖x‖: N²/(N² + ‖x‖²)
    assert pass_through_block((64, 4, 64), 1e-6, BERT, seed=0).cosine_in == pytest.approx(0, abs=0.02)


def test_a_bias_sharpens_attention_after_and_evens_it_before_a_norm() -> None:
    after = [pass_through_block((64, 2, 32), bias, BlockSetting("post"), seed=1).entropy for bias in (0.1, 30.0)]
    before = [pass_through_block((64, 2, 32), bias, BlockSetting("pre"), seed=1).entropy for bias in (0.1, 30.0)]
    assert after[1] < after[0] - 0.05
    assert before[1] > before[0]


def test_the_cosine_of_states_is_the_mean_over_pairs() -> None:
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    assert mean_cosine(rows) == pytest.approx(slow_cosine(rows.numpy().astype(float)))


def test_means_before_rotation_are_those_of_the_projections() -> None:
    model = Transformer(Config(vocabulary=11, width=16, heads=2, layers=2, context=8), seed=3)
    ids = torch.randint(11, (5, 8), generator=torch.Generator().manual_seed(0))
    block: Any = model.blocks[0]
    x = block.norm_attn(model.tokens(ids)).detach()
    q, k = (f(x).detach().view(-1, 2, 8).mean(0) for f in (block.attn.q_proj, block.attn.k_proj))
    found = cosines_before_rotation(model, [{"input_ids": ids[:3]}, {"input_ids": ids[3:]}])
    assert found[0, 1] == pytest.approx(float(q[1] @ k[1] / (q[1].norm() * k[1].norm())), abs=1e-5)
    assert len(found) == 4


def test_attention_without_its_mean_query_is_that_of_centred_queries() -> None:
    """Without rotary embedding and with every window alike, centred queries are zero and attention is even."""
    model = Transformer(Config(vocabulary=11, width=16, heads=2, layers=1, context=8, init_scale=20.0), seed=3)
    ids = torch.randint(11, (1, 8), generator=torch.Generator().manual_seed(0)).expand(6, 8)
    plain = entropies(model, [{"input_ids": ids}])
    without = entropies(model, [{"input_ids": ids}], centred=True)
    assert all(value < 0.99 for value in plain.values())
    assert list(without.values()) == pytest.approx([1.0, 1.0], abs=1e-4)


# --- the catalogue ------------------------------------------------------------------------------------------------


def test_a_claim_that_does_not_exist_is_refused_with_its_neighbours() -> None:
    assert [claim.id for claim in find_claims(["a3", "S1"])] == ["S1", "A3"]
    assert len(find_claims([])) == 26
    with pytest.raises(InputError, match="no claim is called 'S9'"):
        find_claims(["S9"])
    with pytest.raises(InputError, match="no size is called 'huge'"):
        find_size("huge")


def test_trainings_that_claims_share_are_paid_once() -> None:
    small = find_size("small")
    s1, s6 = find_claims(["S1", "S6"])
    assert cost([s1, s6], small) < cost([s1], small) + cost([s6], small)
    assert cost(CLAIMS, small) < 45
    assert cost(CLAIMS, find_size("tiny")) < 3


def test_looks_are_early_and_late_and_include_the_ends() -> None:
    for size in SIZES.values():
        assert size.measured_steps[0] == 0
        assert size.measured_steps[-1] == size.steps
        assert size.frozen in size.measured_steps
        assert size.early
        assert size.late
        assert max(size.early) == size.frozen < min(size.late)
        assert size.seeds >= 3
    assert SIZES["small"].seeds == 5
