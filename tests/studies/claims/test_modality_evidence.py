"""Evidence from a panel of modalities."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.records import Record
from anisoscope.studies.claims import modality_evidence
from anisoscope.studies.claims.modality_panel import AUDIO, CHARACTER, CONVOLUTION, IMAGE, TEXT, PanelMember
from anisoscope.studies.claims.run_view import (
    RunView,
    Units,
)
from anisoscope.studies.claims.runner import find_size
from anisoscope.studies.claims.subjects import Lab, LabModel, Subjects


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


def test_networks_with_random_weights_are_shown_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    rising = [1.0, 2, 3, 4, 5, 6, 7]
    trained = [member(kind, 0.5, drift=rising) for kind in (TEXT, CHARACTER)]
    random = [member(kind, 0.0, drift=rising[::-1], random=True) for kind in (IMAGE, AUDIO, CONVOLUTION)]
    subjects = panel_of([*trained, *random], monkeypatch)
    found = modality_evidence.cosine_evidence(subjects)
    assert set(found.estimates) >= {"share_text", "share_character", "risen_text"}
    assert not {"share_image", "share_audio", "cnn_lower", "cnn_lower_risen"} & set(found.estimates)
    assert "not judged" in found.ran
    assert modality_evidence.drift_evidence(subjects).estimates["significant"].value == 1


def test_drift_that_falls_while_the_cosine_rises_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = [7.0, 6, 5, 4, 3, 2, 1]
    subjects = panel_of([member(kind, 0.5, drift=falling) for kind in (TEXT, CHARACTER)], monkeypatch)
    assert modality_evidence.drift_evidence(subjects).estimates["significant"].value == 0.5  # the lab's other two rise
