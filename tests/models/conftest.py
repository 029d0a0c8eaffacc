"""Fixtures of the tests of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import model_folders as made


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return made.gpt2(tmp_path / "gpt2")
