"""From packages of an index to evidence: download, build, check, measure trained and untrained; resumable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.models.open import open_model
from anisoscope.studies.atlas import added_model, atlas_runs
from anisoscope.studies.atlas.atlas_inputs import MEDIA_BUILDERS, TEXT_BUILDERS
from anisoscope.studies.atlas.atlas_registry import registry
from anisoscope.studies.atlas.atlas_runs import (
    COMMON,
    METRICS,
    AtlasSubject,
    measure_atlas,
    measure_subject,
    openable,
    total_seconds,
)
from anisoscope.studies.atlas.builders import BUILDERS
from anisoscope.studies.atlas.checks import CHECKS
from anisoscope.studies.atlas.evidence import read_evidence
from anisoscope.studies.atlas.untrained_twin import untrained_twin
from tests import model_folders as made
from tests.studies.atlas.fake_index import index_of
from tests.studies.atlas.tiny_registry import tiny_registry


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Measure in this process, with pip's index in a folder; returns the names of measured runs."""
    done: list[str] = []

    def run_here(
        subjects: dict[Any, AtlasSubject], workers: int = 1, *, again: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        for key, subject in subjects.items():
            cost = None if again else atlas_runs.finished_cost(subject)
            if cost is None:
                cost = measure_subject(subject, again)
                done.append(subject.out.name)
            yield key, cost

    monkeypatch.setenv("PIP_INDEX_URL", index_of(tmp_path)[0])
    monkeypatch.setattr(atlas_runs, "run_subjects", run_here)
    monkeypatch.setattr(added_model, "run_subjects", run_here)
    return done


def test_a_model_goes_from_packages_to_evidence_and_is_resumed(tmp_path: Path, here: list[str]) -> None:
    tiny = tiny_registry(tmp_path)
    models = list(tiny.models.values())
    said: list[str] = []
    left = tmp_path / "cache" / "runs" / f".tiny--words.cost.json.{2**22 + 1}.tmp"  # of a killed process
    left.parent.mkdir(parents=True)
    left.touch()
    outcome = measure_atlas(models, tiny, tmp_path / "cache", tmp_path / "out", on_status=said.append)
    assert (outcome.measured, outcome.failed) == (["tiny"], {})
    assert not left.exists()
    assert here == ["tiny--words", "tiny-untrained--words"]
    (evidence,) = read_evidence(tmp_path / "out")
    assert (evidence.depth, evidence.width, evidence.domain) == (2, 16, "words")
    assert evidence.packages == ["tiny-gpt2==1.0"]
    assert evidence.inputs["words"]["tokens"] == 1024
    assert set(evidence.inputs["words"]["trained"]) == set(METRICS)
    error = evidence.points("spectral_anisotropy", "no-sink")[1][2]
    assert error is not None
    assert error > 0
    assert [point[0] for point in evidence.points("outlier_dimensions")] == ["embed", "resid.0", "resid.1", "final"]
    assert len(evidence.points("isoscore", state="untrained")) == 4
    assert measure_atlas(models, tiny, tmp_path / "cache", tmp_path / "out").skipped == ["tiny"]
    (tmp_path / "out" / "tiny.json").unlink()  # its runs are complete, so nothing is measured again
    measure_atlas(models, tiny, tmp_path / "cache", tmp_path / "out")
    assert len(here) == 2
    assert read_evidence(tmp_path / "out") == [evidence]


def test_a_model_that_fails_its_check_is_not_measured(tmp_path: Path, here: list[str]) -> None:
    tiny = tiny_registry(tmp_path, limit=0.5)
    outcome = measure_atlas(list(tiny.models.values()), tiny, tmp_path / "cache", tmp_path / "out")
    assert "does not pass its check" in outcome.failed["tiny"]
    assert here == []
    assert not (tmp_path / "out").exists()


def test_a_complete_run_of_another_request_is_measured_again(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_registry(tmp_path)
    models = list(tiny.models.values())
    measure_atlas(models, tiny, tmp_path / "cache", tmp_path / "out")
    monkeypatch.setattr(atlas_runs, "METRICS", ("spectral_anisotropy", "participation_ratio", "isoscore"))
    measure_atlas(models, tiny, tmp_path / "cache", tmp_path / "other")
    assert len(here) == 4
    (evidence,) = read_evidence(tmp_path / "other")
    assert set(evidence.inputs["words"]["trained"]) == {"spectral_anisotropy", "participation_ratio", "isoscore"}


def test_the_cost_is_processor_time_and_unknown_for_a_resumed_run(tmp_path: Path) -> None:
    folder = made.gpt2(tmp_path / "tiny")
    (tmp_path / "corpus.txt").write_text("\n\n".join([made.WORDS] * 20))
    subject = AtlasSubject(folder, str(tmp_path / "corpus.txt"), "text", 256, None, tmp_path / "run")
    before = time.process_time()
    cost = measure_subject(subject)
    assert 0 < cost["seconds"] <= time.process_time() - before + 0.05  # rounded to a tenth
    assert cost["peak"] > cost["weights"] > 0
    resumed = measure_subject(subject)
    assert resumed["seconds"] is None
    assert total_seconds([cost, resumed]) is None


def test_your_own_model_is_added_with_its_twin(tmp_path: Path, here: list[str]) -> None:
    folder = made.gpt2(tmp_path / "mine")
    (tmp_path / "corpus.txt").write_text("\n\n".join([made.WORDS] * 40))
    evidence = added_model.add_model(folder, "text", tmp_path / "corpus.txt", tokens=512, cache=tmp_path / "cache")
    assert (evidence.name, evidence.domain, evidence.width) == ("mine", "corpus", 16)
    assert evidence.points("mean_cosine", state="untrained")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("mine")] == ["mine"]  # twin elsewhere


def test_a_folder_with_one_gguf_file_is_opened_by_that_file(tmp_path: Path) -> None:
    assert openable(tmp_path) == tmp_path
    (tmp_path / "model.gguf").touch()
    assert openable(tmp_path) == tmp_path / "model.gguf"


def test_a_gguf_file_has_a_twin_of_the_same_shape_with_other_weights(tmp_path: Path) -> None:
    (tmp_path / "quantised").mkdir()
    made.llama_gguf(tmp_path / "quantised" / "model.gguf")
    trained = open_model(tmp_path / "quantised")
    twin = open_model(untrained_twin(tmp_path / "quantised", seed=1))
    assert twin.info["parameters"] == trained.info["parameters"]
    weights, others = trained.model.state_dict(), twin.model.state_dict()
    assert {name: x.shape for name, x in weights.items()} == {name: x.shape for name, x in others.items()}
    assert not any(torch.equal(weights[name], others[name]) for name in weights if weights[name].ndim == 2)
    assert trained.processor is not None
    assert twin.processor is not None
    assert trained.processor("the cat")["input_ids"] == twin.processor("the cat")["input_ids"]


def test_every_entry_of_the_registry_names_what_exists() -> None:
    known = registry()
    assert len(known.models) >= 14
    assert len({model.modality for model in known.models.values()}) >= 5
    for model in known.models.values():
        assert model.build in BUILDERS
        assert model.check["kind"] in CHECKS
        assert all(len(archive.package.sha256) == 64 for archive in model.archives)
        assert model.licence
    for item in known.inputs.values():
        assert item.build in {*TEXT_BUILDERS, *MEDIA_BUILDERS, "topics", "tables"}
    assert COMMON in known.inputs
