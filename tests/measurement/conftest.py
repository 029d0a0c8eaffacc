"""A tiny model and a text, shared by the tests of measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import model_folders

Values = dict[tuple[Any, ...], float]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folders.gpt2(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("text") / "text.txt"
    place.write_text("\n\n".join(model_folders.WORDS for _ in range(12)))
    return place
