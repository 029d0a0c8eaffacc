"""A disk that filled up just after a half-done pass was pointed to left a pointer to a folder that was removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from anisoscope.errors import StoreError
from anisoscope.measurement.resume import Partial


class Counted:
    """As much of a survey as a half-done pass needs."""

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "state.json").write_text("{}")

    def load(self, folder: Path) -> None:
        assert (folder / "state.json").read_text() == "{}"


@pytest.mark.parametrize("fails_at", [0, 1])  # the pointer's own sync, and that of its folder after the rename
def test_what_the_pointer_names_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    survey: Any = Counted()
    Partial(tmp_path).keep(survey, now=True)
    again = Partial(tmp_path)
    assert again.load(survey)
    syncs = 0

    def full(_: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > fails_at:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="free some space"):
            again.keep(survey, now=True)
    assert Partial(tmp_path).load(survey)
    Partial(tmp_path).drop()
    assert not list(tmp_path.glob("partial*"))
