"""What an interval rests on: units that share nothing, shares that are never certain, numbers that are there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.records import Record, Site
from anisoscope.store.run import Run
from anisoscope.studies.claims import modality_evidence, razzhigaev2023
from anisoscope.studies.claims.claim import CONTROL, LAB, PUBLISHED, Estimate, Evidence, judge
from anisoscope.studies.claims.claim_tables import verdicts_summary, verdicts_table
from anisoscope.studies.claims.given_models import GROUPS, groups_of, thinned
from anisoscope.studies.claims.machina2024 import isotropic_level
from anisoscope.studies.claims.modality_panel import AUDIO, CHARACTER, CONVOLUTION, IMAGE, TEXT, PanelMember
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    by_documents,
    estimate,
    estimate_share,
    least_favourable,
)
from anisoscope.studies.claims.runner import CLAIMS, ClaimsRequest, find_claims, find_size, run_claims
from anisoscope.studies.claims.subjects import Lab, LabModel, Subjects

ROOT = Path(__file__).parents[3]


def reading(values: list[float], metric: str = "isoscore", **more: Any) -> RunView:
    """Values from the embedding on."""
    sites = ["embed", *(f"resid.{place}" for place in range(len(values) - 1))]
    return RunView.of([Record(site, metric, value, **more) for site, value in zip(sites, values, strict=True)])


# --- shares -------------------------------------------------------------------------------------------------------


def test_a_share_in_which_all_units_agree_is_not_certain() -> None:
    few, many = Estimate.of_flags([True] * 12), Estimate.of_flags([True] * 80)
    assert few.value == many.value == 1
    assert few.interval[0] < 0.95 < many.interval[0] < 1
    assert Estimate.of_flags([False] * 12).interval[1] > 0.1


def test_a_share_keeps_the_spread_of_its_units_where_that_is_larger() -> None:
    values = [0.1, 0.9, 0.2, 0.8]
    assert Estimate.over(values).of_answers(4000) == Estimate.over(values)
    assert Estimate(0.5, None, 1).of_answers(10).error is None


def test_answers_of_all_seeds_are_counted_and_those_of_documents_once() -> None:
    flags = [0.3, 0.4, 0.5, 0.6]

    def high(r: RunView) -> list[bool]:
        return [value > 0.2 for value in r.profile("isoscore")]

    seeds = Units(tuple(reading(flags) for _ in range(5)))
    assert estimate_share(high, seeds) == Estimate.of_flags([True] * 20).__class__(
        1.0, Estimate(1.0, 0.0, 5).of_answers(20).error, 5
    )
    documents = Units(tuple(reading(flags) for _ in range(5)), "documents", reading(flags))
    assert estimate_share(high, documents).error == Estimate(1.0, 0.0, 5).of_answers(4).error


# --- numbers that are not there -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "error"), [(math.nan, 0.1), (math.inf, 0.1), (0.5, math.nan)])
def test_a_quantity_that_is_no_number_was_not_measured(value: float, error: float) -> None:
    """It used to end in a record that cannot be written."""
    claim = find_claims(["S4"])[0]
    verdict = judge(claim, Evidence("r", LAB, {"over_global": Estimate(value, error, 5)}))[0]
    assert verdict.outcome == "inconclusive"
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


# --- units that share nothing -------------------------------------------------------------------------------------


def test_halves_of_the_lab_s_text_are_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(40 * 4).view(40, 4)
    monkeypatch.setattr(Lab, "held_out", lambda self, cell: ids)
    lab = Lab(Path("nowhere"), find_size("tiny"), 3, lambda _: None)
    halves = [torch.cat([batch["input_ids"] for batch in lab.batches("decoder", half)]) for half in (0, 1)]
    assert torch.cat(halves).equal(ids)
    assert int(halves[0].max()) < int(halves[1].min())


def test_groups_of_documents_are_runs_of_the_text() -> None:
    batches: list[Any] = list(range(11))
    groups = groups_of(batches)
    assert len(groups) == GROUPS
    assert [each for group in groups for each in group] == batches
    with pytest.raises(Missing, match="3 batches, but 4 are needed"):
        groups_of(batches[:3])


def test_a_deep_model_is_read_at_seven_depths_with_its_ends() -> None:
    deep = [Site.parse(name) for name in ("embed", *(f"resid.{layer}" for layer in range(30)), "final")]
    found = [str(site) for site in thinned(deep)]
    assert found == ["embed", *(f"resid.{layer}" for layer in (4, 9, 14, 19, 24, 29)), "final"]
    assert thinned(deep[:7]) == deep[:7]


def test_of_several_models_the_least_favourable_speaks() -> None:
    bells = [{"bell": Estimate(0.3, 0.1, 5)}, {"bell": Estimate(0.1, 0.1, 5)}, {"range": Estimate(0.05, 0.1, 5)}]
    found = least_favourable([*bells, {"range": Estimate(0.4, 0.1, 5)}], highest=["range"])
    assert {name: each.value for name, each in found.items()} == {"bell": 0.1, "range": 0.4}


# --- what may decide ----------------------------------------------------------------------------------------------


def member(modality: str, cosine: float, *, drift: list[float], random: bool = False) -> PanelMember:
    parts = []
    for seed in range(5):
        records = []
        for place, long in enumerate(drift):
            site = "embed" if place == 0 else f"resid.{place - 1}"
            level = cosine + 0.01 * place + 0.001 * seed
            records += [
                Record(site, "mean_cosine", level),
                Record(site, "mean_cosine_centred", level / 20),
                Record(site, "mean_cosine_across_documents", level),
                Record(site, "drift_norm", long),
            ]
        parts.append(RunView.of(records))
    units = Units(tuple(parts))
    return PanelMember(modality, modality, units, None if random else units, random)


def panel_of(members: list[PanelMember], monkeypatch: pytest.MonkeyPatch) -> Subjects:
    monkeypatch.setattr(modality_evidence, "members", lambda subjects: list(members))
    monkeypatch.setattr(modality_evidence, "_records", lambda subjects, panel: [])
    subjects = Subjects(find_size("tiny"), Lab(Path("nowhere"), find_size("tiny"), 5, lambda _: None))
    encoder = member(CHARACTER, 0.5, drift=[1, 2, 3, 4, 5, 6, 7])
    monkeypatch.setattr(LabModel, "measure", lambda self, kind, half=None: encoder.measured)
    return subjects


def test_networks_of_random_weights_are_shown_and_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rising = [1.0, 2, 3, 4, 5, 6, 7]
    trained = [member(kind, 0.5, drift=rising) for kind in (TEXT, CHARACTER)]
    random = [member(kind, 0.0, drift=rising[::-1], random=True) for kind in (IMAGE, AUDIO, CONVOLUTION)]
    subjects = panel_of([*trained, *random], monkeypatch)
    found = modality_evidence.cosine_evidence(subjects)
    assert set(found.estimates) >= {"share_text", "share_character", "risen_text"}
    assert not {"share_image", "share_audio", "cnn_lower", "cnn_lower_risen"} & set(found.estimates)
    assert "not judged" in found.ran
    assert modality_evidence.drift_evidence(subjects).estimates["significant"].value == 1


def test_drift_that_falls_where_the_cosine_rises_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = [7.0, 6, 5, 4, 3, 2, 1]
    subjects = panel_of([member(kind, 0.5, drift=falling) for kind in (TEXT, CHARACTER)], monkeypatch)
    assert modality_evidence.drift_evidence(subjects).estimates["significant"].value == 0.5  # the lab's other two rise


def test_few_rows_look_anisotropic_and_many_do_not() -> None:
    assert isotropic_level(96, 64).interval[1] < 0.5
    assert isotropic_level(20_000, 64).interval[0] > 0.7


def test_published_profiles_have_the_values_that_sources_give_and_no_others() -> None:
    found: dict[str, list[float | None]] = {}
    for record in razzhigaev2023._published(13):
        found.setdefault(record.variant["of"], []).append(record.value)
    assert found["GPT-2, published"] == [0.06, 0.30, 0.97, *[0.98] * 9, 0.83]
    assert found["OPT-125m, published"] == [0.98, 0.995, 0.96]
    assert set(found["BERT, published, least"]) == {0.01}
    assert found["Llama-2-7B, published"][-1] == 0.06


# --- the summary that the docs keep -------------------------------------------------------------------------------


def test_a_summary_holds_what_the_run_said(tmp_path: Path) -> None:
    asked = ClaimsRequest(find_size("tiny"))
    told = list(run_claims(find_claims(["A4", "N4"]), tmp_path / "run", asked))
    first = verdicts_summary(tmp_path / "run", CLAIMS)
    assert [(each["claim"], each["line"]) for each in first["verdicts"]] == [
        (name, line) for name in ("A4", "N4") for line in (PUBLISHED, CONTROL)
    ]
    for claim, pair in told:
        for verdict in pair:
            (kept,) = (e for e in first["verdicts"] if (e["claim"], e["line"]) == (claim.id, verdict.line))
            assert (kept["verdict"], kept["reason"]) == (verdict.outcome, verdict.reason)
            assert verdict.effect is not None
            assert f"{verdict.effect}" in verdicts_table(json.loads(json.dumps(first)), [claim])
    assert first["minutes"]["clock"] > 0
    assert "cores" in first["machine"]
    list(run_claims(find_claims(["N4"]), tmp_path / "run", asked))
    assert verdicts_summary(tmp_path / "run", CLAIMS)["minutes"]["clock"] > first["minutes"]["clock"]  # it adds up
    Run.create(tmp_path / "other", {"kind": "lab"}).close()
    with pytest.raises(InputError, match="not of claims"):
        verdicts_summary(tmp_path / "other", CLAIMS)


def test_the_docs_show_the_verdicts_of_size_small_as_the_summary_has_them() -> None:
    summary = json.loads((ROOT / "docs" / "claims-small.json").read_text())
    there = {each["claim"] for each in summary["verdicts"]}
    assert [(each["claim"], each["line"]) for each in summary["verdicts"]] == [
        (claim.id, line) for claim in CLAIMS if claim.id in there for line in (PUBLISHED, CONTROL)
    ]
    assert (summary["asked"]["size"], summary["asked"]["models"]) == ("small", [])
    assert summary["asked"]["seeds"] >= 5
    page = (ROOT / "docs" / "claims.md").read_text()
    assert verdicts_table(summary, CLAIMS) in page
    for claim in CLAIMS:
        assert page.count(f"| {claim.id} | not run | not run |") == (claim.id not in there)
