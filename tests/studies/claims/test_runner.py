"""Claims run for real in their tiny form: plumbing, resuming, models that are given, the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError, StoreError
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import CONTROL, LAB, PUBLISHED, SMOKE_TEST, Claim, Verdict
from anisoscope.studies.claims.conditions import UNTESTABLE
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import LEARNT, LONG, gates_left_out, gates_of_trainings
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.modality_panel import images, members, sounds
from anisoscope.studies.claims.runner import (
    CLAIMS,
    ClaimsRequest,
    cost,
    evidence_run,
    find_claims,
    find_size,
    kept_evidence,
    last_verdicts,
    run_claims,
    time_to_wait,
)
from anisoscope.studies.claims.subjects import Lab
from anisoscope.studies.lab.corpora import open_text
from tests import model_folders as made

# Claims of every paper that need three kinds of training at the most: the others are run by the slow test.
SOME = ["T2", "T6", "S1", "S3", "S4", "A3", "A4", "N3", "N4", "C1"]
Pairs = list[tuple[Claim, tuple[Verdict, Verdict]]]


def run_tiny(ids: Sequence[str], out: Path, messages: list[str] | None = None, **request: object) -> Pairs:
    on_status = None if messages is None else messages.append
    wanted = ClaimsRequest(find_size("tiny"), **request)  # type: ignore[arg-type]
    return list(run_claims(find_claims(ids), out, wanted, on_status=on_status))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of some claims."""
    out = tmp_path_factory.mktemp("claims") / "run"
    run_tiny(SOME, out)
    return out


def judged_anyway(out: Path) -> dict[str, dict[str, str]]:
    """The verdicts that the evidence of a smoke test would give."""
    evidence_of = [(claim, kept_evidence(out, claim.id)) for claim in CLAIMS]
    return {
        claim.id: {verdict.line: verdict.outcome for verdict in judge(claim, replace(evidence, smoke_test=False))}
        for claim, evidence in evidence_of
        if evidence is not None
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A text of several documents for models that are given."""
    path = tmp_path_factory.mktemp("text") / "topics.jsonl"
    documents = list(open_text("topics"))[:12]
    path.write_text("\n".join(json.dumps({"text": document[:700]}) for document in documents))
    return str(path)


def check_run(out: Path, ids: Sequence[str]) -> None:
    """Every claim has two verdicts in the run, evidence with an error bar, and records for its figure."""
    records = list(Run.open(out).records())
    assert [(r.variant["claim"], r.variant["line"]) for r in records] == [
        (each, line) for each in ids for line in (PUBLISHED, CONTROL)
    ]
    for record in records:
        assert (record.site, record.metric) == ("vectors", "verdict")
        assert record.variant["verdict"] == SMOKE_TEST
        assert record.note
    for claim in find_claims(ids):
        evidence = kept_evidence(out, claim.id)
        assert evidence is not None, [r.note for r in records if r.variant["claim"] == claim.id]
        asked = {c.name for rule in (claim.published, claim.control) for conditions in rule for c in conditions}
        assert asked - set(evidence.left_out) <= set(evidence.estimates) | _unmeasured(claim)
        run = evidence_run(out, claim.id)
        assert run is not None
        cards = run.metrics()
        assert set(claim.figure) & set(cards), f"{claim.id} has no figure"
        assert all(cards[metric].get("meaning") for metric in claim.figure if metric in cards)


def _unmeasured(claim: Claim) -> set[str]:
    """What no weights are at hand for, in the lab: trained models of images and sound."""
    there = {f"{kind}_{modality}" for kind in ("share", "risen") for modality in ("image", "audio")}
    return {*there, "cnn_lower", "cnn_lower_risen"} if claim.id == "A1" else set()


def test_claims_leave_verdicts_evidence_and_figures(tiny: Path) -> None:
    check_run(tiny, [claim.id for claim in find_claims(SOME)])
    assert Run.open(tiny).info["settings"]["size"] == "tiny"


def test_claims_with_known_answers_get_them(tiny: Path) -> None:
    found = judged_anyway(tiny)
    assert found["T6"] == {PUBLISHED: "reproduced", CONTROL: UNTESTABLE}  # a simulation; tiny models
    assert found["A4"] == {PUBLISHED: "reproduced", CONTROL: "not reproduced"}  # reversed where the norm comes first
    assert found["N4"] == {PUBLISHED: "reproduced", CONTROL: "not reproduced"}  # a correct sample agrees
    assert found["S3"][CONTROL] == UNTESTABLE  # no cloud of this width could read above 60
    evidence = kept_evidence(tiny, "N4")
    assert evidence is not None
    assert evidence.estimates["wrong"].value == pytest.approx(0.5, abs=0.02)  # it reads nearly 0 for one half


def test_a_claim_about_long_trainings_counts_tokens_per_parameter(tiny: Path) -> None:
    """Six steps of four windows of 16 tokens. For a model of the user the gate is left out, with the reason."""
    lab = Lab(tiny / "lab", find_size("tiny"), 3, lambda _: None)
    parameters = sum(p.numel() for p in lab.model("decoder", 0, 6).parameters())
    found = gates_of_trainings([LONG], lab, ["decoder"])
    assert found[LONG.name].value == pytest.approx(6 * 4 * 16 / parameters)
    assert LONG in find_claims(["N2"])[0].gates
    assert "length of the training" in gates_left_out([LONG])[LONG.name]


def test_stored_evidence_is_reused(tiny: Path) -> None:
    messages: list[str] = []
    before = (tiny / "records.jsonl").stat().st_mtime_ns
    again = run_tiny(SOME, tiny, messages)
    assert messages == []
    assert {claim.id: pair[0].outcome for claim, pair in again} == {
        name: lines[PUBLISHED] for name, lines in last_verdicts(tiny).items()
    }
    assert (tiny / "records.jsonl").stat().st_mtime_ns > before  # judged again all the same


def test_another_claim_reuses_existing_trainings(tiny: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    run_tiny(["S1", "S6"], shutil.copytree(tiny, tmp_path / "copy"), messages)
    there = {cell for claim in find_claims(SOME) for cell in claim.cells}
    needed = {cell for claim in find_claims(["S1", "S6"]) for cell in claim.cells}
    assert there & needed
    assert sorted(each for each in messages if each.startswith("training")) == sorted(
        f"training {cell}, seed {seed}" for cell in needed - there for seed in range(3)
    )


def test_only_the_evidence_on_disk_decides(tmp_path: Path) -> None:
    """A run whose evidence says the opposite gets the opposite verdict."""
    for name, sign in (("holds", 1.0), ("fails", -1.0)):
        out = tmp_path / name
        run_tiny(["N4"], out)
        place = out / "evidence" / "S4"
        values = {"value": 0.3 * sign, "error": 0.01, "n": 5, "unit": "seeds"}
        known = {"over_global": values, "level": {**values, "value": 0.9}, LEARNT.name: Estimate.exact(1.0).to_json()}
        made = {"ran": "by hand", "scale": "lab", "left_out": {}, "estimates": known}
        with Run.create(place, {"kind": "evidence", "evidence": made}):
            pass
        run_tiny(["S4"], out)
    assert last_verdicts(tmp_path / "holds")["S4"][PUBLISHED] == "reproduced"
    assert last_verdicts(tmp_path / "fails")["S4"][PUBLISHED] == "not reproduced"


def test_a_folder_cannot_change_its_request(tiny: Path) -> None:
    with pytest.raises(StoreError, match=r"another request \(different: seeds \(3 before, 4 now\)\)"):
        list(run_claims(find_claims(["N4"]), tiny, ClaimsRequest(find_size("tiny", 4))))
    with pytest.raises(StoreError, match=r"models \(None before, \./nowhere now\)"):  # before the models are looked for
        list(run_claims(find_claims(["N4"]), tiny, ClaimsRequest(find_size("tiny"), ("./nowhere",))))
    with pytest.raises(InputError, match="not of claims"):
        list(run_claims(find_claims(["N4"]), tiny / "evidence" / "N4", ClaimsRequest(find_size("tiny"))))


def test_overwrite_starts_again_and_deletes_no_other_file(tmp_path: Path) -> None:
    out, claims = tmp_path / "run", find_claims(["N4"])
    run_tiny(["N4"], out)
    other = ClaimsRequest(find_size("tiny", 4))
    (out / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        list(run_claims(claims, out, other, overwrite=True))
    (out / "notes.txt").unlink()
    list(run_claims(claims, out, other, overwrite=True))
    assert Run.open(out).info["settings"]["seeds"] == 4


def test_lab_models_that_have_not_learnt_decide_nothing(tmp_path: Path) -> None:
    """The same six steps, if they were not declared a smoke test."""
    size = replace(find_size("tiny"), smoke_test=False)
    ((claim, pair),) = run_claims(find_claims(["S4"]), tmp_path / "run", ClaimsRequest(size))
    evidence = kept_evidence(tmp_path / "run", "S4")
    assert evidence is not None
    assert evidence.scale == LAB
    assert evidence.estimates[LEARNT.name].value < 0  # worse than counting pairs of letters
    assert {verdict.outcome for verdict in pair} == {UNTESTABLE}
    assert all(LEARNT.description in verdict.reasons.conditions[0] for verdict in pair)
    learnt = {**evidence.estimates, LEARNT.name: Estimate.exact(1.0)}
    assert judge(claim, replace(evidence, estimates=learnt))[1].outcome != UNTESTABLE


def test_a_model_of_the_user_is_judged_by_its_documents(tiny: Path, tmp_path: Path, text: str) -> None:
    model = str(tiny / "lab" / "decoder-seed-0" / "checkpoints" / "step-6")
    ran = run_tiny(["S1", "A4", "N1"], tmp_path / "run", models=(model,), text=text)
    found = {claim.id: pair for claim, pair in ran}
    assert "no encoder was given" in found["S1"][0].reason
    assert "documents" in found["S1"][0].reason
    assert found["N1"][0].outcome != "reproduced"  # one small model says nothing of large ones
    assert "the embeddings of" in found["A4"][0].reason


def test_a_short_text_only_leaves_out_tylers_matrix(tiny: Path, tmp_path: Path) -> None:
    """From few rows a dimension it says anything: four copies of a row are enough to turn it."""
    (tmp_path / "short.txt").write_text("a word or two. " * 30)
    model = str(tiny / "lab" / "decoder-seed-0" / "checkpoints" / "step-6")
    ((_, pair),) = run_tiny(["S1"], tmp_path / "run", models=(model,), text=str(tmp_path / "short.txt"))
    evidence = kept_evidence(tmp_path / "run", "S1")
    assert evidence is not None, pair[0].reason
    assert set(evidence.estimates) == {"bell", "bell_no_sink", "below_end", "below_end_no_sink", "states"}


def test_a_model_without_a_text_is_measured_on_the_text_of_the_lab(tiny: Path, tmp_path: Path) -> None:
    model = str(tiny / "lab" / "decoder-seed-0" / "checkpoints" / "step-6")
    ((_, pair),) = run_tiny(["S1"], tmp_path / "run", models=(model,))
    assert kept_evidence(tmp_path / "run", "S1") is not None, pair[0].reason
    assert "on Python's help topics" in pair[0].reason
    file = tmp_path / "run" / "models" / "topics.jsonl"
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert texts == list(open_text("topics"))


def test_a_claim_without_its_data_stays_open_and_names_what_is_missing(tmp_path: Path) -> None:
    model = str(made.save(tmp_path / "vit", made.hf.ViTModel(made.vit_config()), made.hf.ViTImageProcessor()))
    ((_, pair),) = run_tiny(["A1"], tmp_path / "run", models=(model,))
    assert {verdict.outcome for verdict in pair} == {"inconclusive"}
    assert all("give --images" in verdict.reason for verdict in pair)


def test_a_missing_model_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No checkpoints at"):
        run_tiny(["S1"], tmp_path / "run", models=("./nowhere/at-all",))
    assert not (tmp_path / "run").exists()


def test_the_panel_has_every_modality_and_marks_random_weights(tmp_path: Path) -> None:
    from anisoscope.studies.claims.subjects import Lab, Subjects

    size = find_size("tiny")
    panel = members(Subjects(size, Lab(tmp_path, size, 3, lambda _: None)))
    assert [member.modality for member in panel] == ["text", "character", "image", "audio", "convolution"]
    assert [member.name for member in panel if member.untrained is None] == [
        f"{name}, random weights" for name in ("ViT", "wav2vec 2.0", "ResNet")
    ]
    assert images(0, 5).shape == (5, 3, 64, 64)
    assert not images(0, 5).equal(images(1, 5))
    assert sounds(0, 5).std() == pytest.approx(1, abs=1e-3)


# --- the command line ---------------------------------------------------------------------------------------------


def test_the_list_shows_the_last_verdicts(tiny: Path) -> None:
    done = CliRunner().invoke(app, ["claims", "--out", str(tiny), "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["id"]: row for row in json.loads(done.output)}
    assert list(rows) == [claim.id for claim in CLAIMS]
    assert rows["N4"]["verdicts"] == {PUBLISHED: SMOKE_TEST, CONTROL: SMOKE_TEST}
    assert rows["T1"]["verdicts"] == {}
    table = CliRunner().invoke(app, ["claims", "--out", str(tiny)], env={"COLUMNS": "160"})
    assert "Razzhigaev 2023" in table.output
    assert "▨ ▨" in table.output


def test_a_run_prints_verdicts_with_reasons(tiny: Path) -> None:
    done = CliRunner().invoke(app, ["claims", "run", "n4", "--size", "tiny", "--out", str(tiny), "--json"])
    assert done.exit_code == 0, done.output
    records = json.loads(done.stdout)
    assert [record["variant"]["line"] for record in records] == [PUBLISHED, CONTROL]
    assert "required: > 0.1" in records[0]["note"]


def test_the_page_shows_every_claim_its_verdicts_and_a_figure(tiny: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["claims", "report", "--out", str(tiny), "--page", str(page)])
    assert done.exit_code == 0, done.output
    html = page.read_text()
    assert "<script" not in html
    assert "(required: &gt; 0)</li><li>decoder" in html  # one condition per line
    for claim in find_claims(SOME):
        section = re.search(f'id="{claim.id}".*?</section>', html, re.DOTALL)
        assert section is not None
        assert section[0].count('class="verdict') == 2
        assert "<svg" in section[0], f"{claim.id} has no figure"
    assert "GPT-2, published" in html


def test_a_page_without_evidence_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"kind": "claims", "settings": {}, "versions": {}}).close()
    done = CliRunner().invoke(app, ["claims", "report", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InputError)
    assert "claims run" in str(done.exception)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        [],
        {"ran": "", "scale": "lab", "left_out": {}, "estimates": {"bell": {"value": "high"}}},
        {
            "ran": "",
            "scale": "lab",
            "left_out": {},
            "estimates": {"bell": {"value": [1], "error": 0, "n": 3, "unit": ""}},
        },
        {"ran": "", "scale": "lab", "left_out": 3, "estimates": {}},
    ],
)
def test_damaged_evidence_gives_one_error(tmp_path: Path, evidence: object) -> None:
    Run.create(tmp_path / "run", {"kind": "claims", "settings": {}, "versions": {}}).close()
    Run.create(tmp_path / "run" / "evidence" / "S1", {"kind": "evidence", "evidence": evidence}).close()
    done = CliRunner().invoke(app, ["claims", "report", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, StoreError)
    assert "the evidence is gathered again" in str(done.exception)


def test_a_run_without_any_evidence_fails(tmp_path: Path) -> None:
    model = str(made.save(tmp_path / "vit", made.hf.ViTModel(made.vit_config()), made.hf.ViTImageProcessor()))
    done = CliRunner().invoke(app, ["claims", "run", "A1", "--model", model, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InputError)
    assert "give --images" in str(done.exception)


@pytest.mark.slow
def test_every_claim_runs_in_its_tiny_form(tmp_path: Path) -> None:
    run_tiny([], tmp_path / "run")
    check_run(tmp_path / "run", [claim.id for claim in CLAIMS])
    outcomes = judged_anyway(tmp_path / "run")
    assert outcomes["N1"] == {PUBLISHED: UNTESTABLE, CONTROL: UNTESTABLE}


@pytest.mark.slow
def test_checkpoints_of_a_model_are_used_as_a_series(tmp_path: Path, text: str) -> None:
    """Everything that can be asked of a training of somebody else's, here one of the lab."""
    run_tiny(["S4"], tmp_path / "lab")
    model = str(tmp_path / "lab" / "lab" / "decoder-seed-0")
    ids = ["T1", "T2", "T3", "T4", "T5", "T6", "S2", "S5", "A1", "A5", "N2", "N3"]
    found = run_tiny(ids, tmp_path / "run", models=(model,), text=text)
    for claim, pair in found:
        assert kept_evidence(tmp_path / "run", claim.id) is not None, pair[0].reason


def test_an_unknown_claim_or_size_is_refused() -> None:
    assert [claim.id for claim in find_claims(["a3", "S1"])] == ["S1", "A3"]
    assert len(find_claims([])) == 30
    with pytest.raises(InputError, match="No claim named 'S9'"):
        find_claims(["S9"])
    with pytest.raises(InputError, match="No size named 'huge'"):
        find_size("huge")


def test_shared_trainings_are_counted_once_in_the_cost() -> None:
    small = find_size("small")
    s1, s6 = find_claims(["S1", "S6"])
    assert cost([s1, s6], small) < cost([s1], small) + cost([s6], small)
    assert cost(CLAIMS, small) < 200  # of one core: 100 minutes on two
    assert cost(CLAIMS, find_size("tiny")) < 3


def test_the_announced_time_leaves_out_trainings_that_are_complete(tmp_path: Path) -> None:
    claims, size = find_claims(["S2"]), find_size("small")
    for seed, stopped in ((0, None), (1, "interrupted")):
        info = {"ended": {"step": size.steps, "stopped": stopped}}
        Run.create(tmp_path / "lab" / f"decoder-seed-{seed}", info).close()
    before, after = (time_to_wait(claims, size, folder) for folder in (tmp_path / "new", tmp_path))
    assert 0 < before - after <= size.steps * size.seconds_per_step / 60  # one training, shared by the cores
