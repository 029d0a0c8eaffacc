"""Concepts during training: planted ones are found when they are born, while they turn, and until they die."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from anisoscope import InputError, Record
from anisoscope.stats.sample import Sample
from anisoscope.tracker.concept_history import ConceptHistory, SiteConcepts, concept_cards

DIM, ROWS, KINDS = 32, 640, 4
STEPS, BORN, DIED, TURN = range(0, 90, 10), 40, 60, 12.0  # TURN in degrees per due step
STAYS, TURNS, DIES, COMES = range(KINDS)  # what each kind of token does


def planted(step: int, *, seed: int = 0, mean: float = 0.0, basis: Tensor | None = None) -> Sample:
    """Rows that each use one of four directions; the rows of a concept that is not alive use the first direction."""
    draw = torch.Generator().manual_seed(seed)
    frame = torch.linalg.qr(torch.randn(DIM, DIM, generator=draw))[0].T if basis is None else basis
    angle = math.radians(TURN) * step / 10
    directions = frame[:KINDS].clone()
    directions[TURNS] = math.cos(angle) * frame[TURNS] + math.sin(angle) * frame[KINDS]
    kind = torch.arange(ROWS) % KINDS
    used = kind.clone()
    used[(kind == COMES) & (step < BORN)] = STAYS
    used[(kind == DIES) & (step >= DIED)] = STAYS
    z = 1 + torch.rand(ROWS, generator=draw)
    noise = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1000 + step))
    x = z[:, None] * directions[used] + 0.03 * noise + mean * frame[KINDS + 1]
    zeros = torch.zeros(ROWS, dtype=torch.int64)
    token = 10 * kind + torch.arange(ROWS) // KINDS % 3  # three words for each kind
    table = torch.stack((torch.arange(ROWS), torch.arange(ROWS), zeros, zeros, token, zeros), 1)
    return Sample(ROWS, ROWS, x, table)


def follow(history: ConceptHistory, **world: Any) -> list[Record]:
    return [
        record
        for step in STEPS
        for record in history.update("resid.0", planted(step, **world), partial(Record, step=step), step)
    ]


def lives(records: list[Record]) -> dict[int, list[int]]:
    """The steps at which each concept was found, by number."""
    steps: dict[int, list[int]] = {}
    for record in records:
        if record.metric == "concept_share" and record.index is not None:
            steps.setdefault(record.index, []).append(record.step)
    return steps


def first_words(records: list[Record]) -> dict[int, str]:
    """The note of each concept where it is found first, by number."""
    notes: dict[int, str] = {}
    for record in records:
        if record.metric == "concept_share" and record.index is not None:
            notes.setdefault(record.index, record.note or "")
    return notes


def kind_of(records: list[Record], number: int) -> int:
    """The kind of the tokens that describe a concept when it is found first."""
    return int(first_words(records)[number].split(" · ")[0]) // 10


def found_lives(records: list[Record]) -> list[tuple[int, int, int]]:
    """First step, last step and number of steps of each concept."""
    return sorted((steps[0], steps[-1], len(steps)) for steps in lives(records).values())


WHOLE = (STEPS[0], STEPS[-1], len(STEPS))
UNTIL = (STEPS[0], DIED - 10, DIED // 10)
FROM = (BORN, STEPS[-1], len(STEPS) - BORN // 10)


@pytest.mark.parametrize("count", [4, 8])
def test_planted_concepts_are_born_and_die_at_their_steps(count: int) -> None:
    records = follow(ConceptHistory(count))
    assert found_lives(records) == sorted([WHOLE, WHOLE, UNTIL, FROM])
    kinds = {(steps[0], steps[-1]): kind_of(records, number) for number, steps in lives(records).items()}
    assert kinds[UNTIL[:2]] == DIES
    assert kinds[FROM[:2]] == COMES
    born = {r.step: r.value for r in records if r.metric == "concepts_born" and r.value}
    died = {r.step: r.value for r in records if r.metric == "concepts_died" and r.value}
    assert born == {STEPS[0]: 3.0, BORN: 1.0}
    assert died == {DIED: 1.0}


def test_a_mean_that_all_rows_share_does_not_hide_birth_and_death() -> None:
    records = follow(ConceptHistory(5), mean=2.0)
    found = found_lives(records)
    assert found.count(WHOLE) == 2
    assert UNTIL in found
    assert FROM in found


def test_drift_is_the_planted_angle() -> None:
    # The mean of 160 rows of length 1.5 with noise of 0.03 in each of 32 coordinates lies 0.03·√31/(1.5·√160) rad =
    # 0.5° off on average; a weight of another concept's rows of under a hundredth adds as much.
    records = follow(ConceptHistory(KINDS))
    turning = next(
        n for n, steps in lives(records).items() if len(steps) == len(STEPS) and kind_of(records, n) == TURNS
    )
    drift = [r for r in records if r.metric == "concept_drift"]
    for record in (r for r in drift if r.variant["since"] == "last probe"):
        expected = TURN if record.index == turning else 0.0
        assert record.value == pytest.approx(expected, abs=2.5), (record.step, record.index)
        assert record.null == pytest.approx(90, abs=5)  # different concepts are orthogonal
    for record in (r for r in drift if r.variant["since"] == "birth" and r.index == turning):
        assert record.value == pytest.approx(TURN * record.step / 10, abs=4)


def test_fits_of_different_seeds_agree_on_planted_concepts_and_not_on_noise() -> None:
    (planted_stability,) = (
        r for r in ConceptHistory(KINDS).update("resid.0", planted(50), Record, 50) if r.metric == "concept_stability"
    )
    assert planted_stability.value is not None
    assert planted_stability.value > 0.99
    noise = planted(50)
    noise = Sample(ROWS, ROWS, torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)), noise.table)
    records = ConceptHistory(KINDS).update("resid.0", noise, Record, 0)
    (stability,) = (r for r in records if r.metric == "concept_stability")
    assert stability.value is not None
    assert stability.value < 0.9
    assert not lives(records)  # nothing that only one seed finds gets a number


def test_the_same_seed_gives_the_same_records() -> None:
    assert follow(ConceptHistory(KINDS, seed=3)) == follow(ConceptHistory(KINDS, seed=3))


def test_turning_or_reflecting_the_whole_space_changes_no_life_and_no_drift() -> None:
    draw = torch.Generator().manual_seed(9)
    basis = torch.linalg.qr(torch.randn(DIM, DIM, generator=draw))[0].T
    for changed in (basis, -basis):
        assert found_lives(follow(ConceptHistory(KINDS), basis=changed)) == sorted([WHOLE, WHOLE, UNTIL, FROM])


def test_words_come_from_the_tokenizer_and_are_ids_without_one() -> None:
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return f" w{ids[0]}"

    make = partial(Record, step=0)
    for tokenizer in (Tokenizer(), Tokenizer().decode):
        texts = first_words(ConceptHistory(KINDS, tokenizer=tokenizer).update("resid.0", planted(0), make, 0))
        assert "' w20' · ' w21' · ' w22'" in [" · ".join(sorted(text.split(" · "))) for text in texts.values()]
    ids = first_words(ConceptHistory(KINDS).update("resid.0", planted(0), make, 0))
    assert "20 · 21 · 22" in [" · ".join(sorted(text.split(" · "))) for text in ids.values()]


def test_rows_that_are_no_tokens_have_concepts_without_words() -> None:
    sample = planted(0)
    patches = sample.table.clone()
    patches[:, 4] = -1
    records = ConceptHistory(KINDS).update("resid.0", Sample(ROWS, ROWS, sample.x, patches), Record, 0)
    assert lives(records)
    assert all(r.note is None for r in records if r.metric == "concept_share")


def test_a_restored_history_continues_numbers_births_and_drift() -> None:
    whole = follow(ConceptHistory(KINDS))
    first, second = ConceptHistory(KINDS), ConceptHistory(KINDS)
    records = [
        r for step in STEPS[:5] for r in first.update("resid.0", planted(step), partial(Record, step=step), step)
    ]
    second.restore({"resid.0": (STEPS[4], first.arrays("resid.0"))}, records)
    records += [
        r for step in STEPS[5:] for r in second.update("resid.0", planted(step), partial(Record, step=step), step)
    ]
    assert records == whole


def test_a_history_that_was_not_stored_takes_new_numbers() -> None:
    records = [r for step in STEPS[:2] for r in ConceptHistory(KINDS).update("resid.0", planted(step), Record, step)]
    restored = ConceptHistory(KINDS)
    restored.restore({}, records)
    again = restored.update("resid.0", planted(20), Record, 20)
    assert min(lives(again)) > max(lives(records))


def test_a_site_without_living_concepts_can_be_stored() -> None:
    history = ConceptHistory(2, sites={"resid.0": SiteConcepts(0)})
    assert history.arrays("resid.0")["numbers"].shape == (0, 2)


def test_more_concepts_than_half_of_the_dimensions_are_reduced() -> None:
    records = ConceptHistory(1000).update("resid.0", planted(50), Record, 50)
    assert len(lives(records)) <= DIM // 2


@pytest.mark.parametrize(
    ("options", "message"), [({"count": -1}, "concepts=-1"), ({"count": 2, "tokenizer": 5}, "decode")]
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConceptHistory(**options)


def test_every_metric_has_a_card() -> None:
    assert {r.metric for r in follow(ConceptHistory(KINDS))} == set(concept_cards())
