"""Evidence is written, read back, and drawn from the records of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.studies.atlas.evidence import (
    atlas_evidence,
    committed_evidence,
    profiles_of,
    read_evidence,
    write_evidence,
)
from tests.studies.atlas.made_evidence import model


def test_evidence_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = model(spectral_anisotropy=[0.1, 0.2, 0.3])
    write_evidence(made, tmp_path)
    assert read_evidence(tmp_path) == [made]


def test_profiles_keep_the_residual_stream_in_order_and_four_digits() -> None:
    records = [
        Record("resid.1", "two_nn", 12.34567, error=0.5),
        Record("embed", "two_nn", 3.0),
        Record("resid.0", "two_nn", 4.0, tokens="no-sink"),
        Record("attn.0", "two_nn", 5.0),
        Record("resid.0", "isoscore", 0.5),
        Record("resid.0", "two_nn", None, note="too few rows"),
    ]
    assert profiles_of(records, ["two_nn"]) == {
        "two_nn": {
            "all": [("embed", 3.0, None, None), ("resid.1", 12.35, 0.5, None)],
            "no-sink": [("resid.0", 4.0, None, None)],
        }
    }


def test_an_error_of_rounding_noise_is_no_error() -> None:
    records = [Record("embed", "outlier_dimensions", 19.0, error=2.6e-14), Record("resid.0", "two_nn", 1.0, error=1e-4)]
    profiles = profiles_of(records, ["outlier_dimensions", "two_nn"])
    assert profiles["outlier_dimensions"]["all"] == [("embed", 19.0, 0.0, None)]
    assert profiles["two_nn"]["all"] == [("resid.0", 1.0, 1e-4, None)]


def test_only_the_main_stack_is_drawn() -> None:
    made = model(two_nn=[1.0, 2.0])
    points = made.inputs["text"]["trained"]["two_nn"]["all"]
    points[:] = [["enc.resid.0", 1.0, None, None], ["enc.resid.1", 2.0, None, None], ["dec.resid.0", 3.0, None, None]]
    assert [point[0] for point in made.points("two_nn")] == ["enc.resid.0", "enc.resid.1"]


def test_damaged_evidence_and_an_empty_folder_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="atlas is empty"):
        atlas_evidence(tmp_path)
    (tmp_path / "bad.json").write_text('{"name": "bad"}')
    with pytest.raises(InputError, match="not evidence of the atlas"):
        read_evidence(tmp_path)
    with pytest.raises(InputError, match="No folder"):
        atlas_evidence(tmp_path / "absent")


def test_the_committed_evidence_is_small_and_readable() -> None:
    models = read_evidence(committed_evidence())
    for each in models:
        assert each.points("spectral_anisotropy", "all" if each.kind == "convolutional" else "no-sink"), each.name
        assert each.points("spectral_anisotropy", "all", state="untrained"), each.name
    assert sum(file.stat().st_size for file in committed_evidence().glob("*.json")) < 4 << 20
