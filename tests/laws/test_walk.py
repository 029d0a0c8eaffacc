"""Following one value through the library stays short: few functions and few files from the command to the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import walks

# Upper limits, not targets. If a change exceeds one, first look for a wrapper or a small file that can go.
LIMITS = {"vector": (25, 13, 10), "gradient": (12, 8, 5), "claim": (8, 6, 2)}


@pytest.mark.parametrize("name", walks.WALKS)
def test_a_walk_passes_few_functions_files_and_classes(name: str, tmp_path: Path) -> None:
    walk: walks.Walk = getattr(walks, name)(tmp_path)
    numbers = len(walk.steps), len(walk.files), len(walk.classes)
    assert all(number <= limit for number, limit in zip(numbers, LIMITS[name], strict=True)), f"{name}: {walk}"


def test_a_comprehension_and_a_lambda_belong_to_their_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "ROOT", Path(__file__).parent)

    def stop() -> None: ...

    def step() -> None:
        [(lambda: stop())() for _ in range(1)]

    here = "test_a_comprehension_and_a_lambda_belong_to_their_function"
    walk = walks.walk(step, [walks.Stop(stop)])
    assert [name for _, name in walk.steps] == [here, f"{here}.<locals>.step", f"{here}.<locals>.stop"]
    assert (walk.files, walk.classes) == (["test_walk.py"], [])
