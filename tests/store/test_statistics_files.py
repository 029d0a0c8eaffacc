"""Files of statistics: arrays come back under their address, and no name leaves the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import InputError, StoreError
from anisoscope.store.run import Run
from tests.run_samples import texts


def test_statistics_come_back_equal_under_their_address(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "scatter": np.arange(12.0).reshape(3, 4).T,  # not contiguous
        "big_endian": np.arange(3, dtype=">f4"),
        "n": np.array(7, dtype=np.int64),  # a number: no dimensions
        "scalar": np.float32(2.5),
        "half": np.ones((0, 5), dtype=np.float16),
        "flags": np.array([True, False]),
    }
    with Run.create(tmp_path / "r") as run:
        run.save_statistics(3, "resid.7", "all", arrays)
        run.save_statistics(3, "resid.7", "all", {"n": np.zeros(1)}, block=0)
    found = Run.open(tmp_path / "r").load_statistics(3, "resid.7", "all")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == np.shape(array)
        assert found[name].dtype == array.dtype.newbyteorder("=")


def test_statistics_are_listed_by_step_then_in_the_order_of_a_forward_pass(tmp_path: Path) -> None:
    addresses = [
        (-1, "embed", "all", None),
        (0, "embed", "all", None),
        (0, "resid.9", "all", None),
        (0, "resid.9", "all", 2),
        (0, "resid.9", "all", 10),
        (0, "resid.9", "no-sink", None),
        (0, "resid.10", "all", None),
        (10, "embed", "all", None),
    ]
    with Run.create(tmp_path / "r") as run:
        for step, site, tokens, block in reversed(addresses):
            run.save_statistics(step, site, tokens, {"x": np.zeros(1)}, block)
        assert run.statistics() == addresses


hostile_names = st.one_of(
    st.sampled_from(["../..", "/etc/passwd", "~", "a~b", "%2e", "A", "a", "\0", "CON", "."]), texts
)


@given(st.lists(st.tuples(hostile_names, hostile_names.filter(bool), st.none() | st.integers(0, 99)), max_size=5))
@settings(max_examples=60, deadline=None)
def test_statistics_of_any_name_stay_in_their_folder_and_have_different_files(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str, int | None]]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    addresses = {(0, f"weight.x{name}", tokens, block) for name, tokens, block in names}
    with Run.create(root / "r") as run:
        for i, (step, site, tokens, block) in enumerate(sorted(addresses, key=repr)):
            run.save_statistics(step, site, tokens, {"i": np.array(i)}, block)
        for i, (step, site, tokens, block) in enumerate(sorted(addresses, key=repr)):
            assert run.load_statistics(step, site, tokens, block)["i"] == i
        assert set(run.statistics()) == addresses
    files = [path for path in root.rglob("*") if path.suffix == ".safetensors"]
    assert {path.parent for path in files} <= {root / "r" / "stats" / "0"}
    # Also on a disk that ignores case.
    assert len({path.name.lower() for path in files}) == len(addresses)


def test_statistics_of_names_that_differ_in_case_have_files_that_differ_without_it(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        for site in ("weight.a", "weight.A"):
            run.save_statistics(0, site, "all", {"x": np.zeros(1)})
    assert len({name.lower() for name in os.listdir(tmp_path / "r" / "stats" / "0")}) == 2


def test_other_files_in_the_folder_of_statistics_are_ignored(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})
        for name in ("embed~%61ll.safetensors", "nonsense~all.safetensors", "x", ".embed~all.1.tmp", "embed~all~٣"):
            (tmp_path / "r" / "stats" / "0" / name).write_bytes(b"")
        (tmp_path / "r" / "stats" / "notes").mkdir()
        assert run.statistics() == [(0, "embed", "all", None)]


def test_missing_and_damaged_statistics_are_reported(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(StoreError, match="has no statistics of step 0, site embed, tokens all, block 3"):
            run.load_statistics(0, "embed", "all", 3)
        run.save_statistics(0, "embed", "all", {"x": np.zeros(100)})
        path = tmp_path / "r" / "stats" / "0" / "embed~all.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StoreError, match="not a file of statistics"):
            run.load_statistics(0, "embed", "all")


@pytest.mark.parametrize("array", [[1.0], np.array([None]), np.ones(2, dtype=complex), np.array(["a"]), object()])
def test_statistics_that_are_not_numpy_numbers_are_refused(tmp_path: Path, array: Any) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(InputError, match="numpy arrays of numbers, 'x' is"):
            run.save_statistics(0, "embed", "all", {"x": array})
        assert run.statistics() == []


def test_statistics_under_an_impossible_address_are_refused(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        bad: list[tuple[Any, str, str, Any]] = [
            ("..", "embed", "all", None),
            (True, "embed", "all", None),
            (0, "../x", "all", None),
            (0, "embed", "", None),
            (0, "embed", "all", -1),
            (0, "embed", "all", "x"),
            (0, "weight." + "x" * 300, "all", None),
            (0, "weight.\ud800", "all", None),
        ]
        for step, site, tokens, block in bad:
            with pytest.raises(InputError):
                run.save_statistics(step, site, tokens, {"x": np.zeros(1)}, block)
        for name in ("", "__metadata__"):
            with pytest.raises(InputError, match="cannot be called"):
                run.save_statistics(0, "embed", "all", {name: np.zeros(1)})
