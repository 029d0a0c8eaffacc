"""The options of a callback are checked when it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.integrations import lightning, transformers
from anisoscope.integrations.tracker_maker import tracker_maker
from tests.training import held_out, small_model


def test_a_tracker_is_made_with_the_options(tmp_path: Path) -> None:
    make = tracker_maker(held_out(), tmp_path / "run", {"gradients": False})
    with make(small_model(), None, 100):
        assert (tmp_path / "run" / "run.json").is_file()


@pytest.mark.parametrize("module", [lightning, transformers])
def test_a_misspelt_option_is_refused_before_training_starts(module: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gradients"):
        module.GeometryCallback(held_out(), tmp_path / "run", gradient=False)  # type: ignore[attr-defined]
