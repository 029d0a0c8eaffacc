"""A series of checkpoints and a text for the tests of a sweep."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sweep_folders import checkpoint_series, documents


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A series of four checkpoints, and a text."""
    place = tmp_path_factory.mktemp("sweep")
    return checkpoint_series(place / "train"), documents(place / "text.jsonl")


@pytest.fixture
def train(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the series that a test may damage."""
    return Path(shutil.copytree(made[0], tmp_path / "train"))


@pytest.fixture
def text(made: tuple[Path, Path]) -> Path:
    return made[1]
