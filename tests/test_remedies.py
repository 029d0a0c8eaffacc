"""Remedies: what a fitted map does, and that it can be saved, loaded and applied to other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import anisoscope
from anisoscope.errors import InputError
from anisoscope.remedies import Remedy, fit_remedy, optimal_shrinkage
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.moments import Moments


@pytest.fixture
def rows() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((300, 8)) * np.linspace(3, 0.5, 8) + 2.0


def test_ledoit_wolf_is_the_default_shrinkage() -> None:
    from sklearn.covariance import ledoit_wolf

    x = np.random.default_rng(3).standard_normal((120, 30)) * np.linspace(3, 0.2, 30)
    assert optimal_shrinkage(cloud_of(x, {"Moments"}).get(Moments)) == pytest.approx(ledoit_wolf(x)[1])


def test_the_three_remedies_do_what_their_names_say(rows: np.ndarray[Any, Any]) -> None:
    centred = fit_remedy(rows, centre=True)
    assert centred.apply(rows) == pytest.approx(rows - rows.mean(0))
    less = fit_remedy(rows, centre=True, remove_top=2).apply(rows)
    assert np.linalg.matrix_rank(less, tol=1e-6) == 6
    white = fit_remedy(rows, centre=True, whiten=True, shrinkage=0.0).apply(rows)
    assert np.cov(white.T, bias=True) == pytest.approx(np.eye(8), abs=1e-9)


def test_a_saved_map_transforms_other_rows_in_the_same_way(rows: np.ndarray[Any, Any], tmp_path: Path) -> None:
    fitted = anisoscope.fit_remedy(rows, centre=True, remove_top=1, whiten=True)
    fitted.save(tmp_path / "map.safetensors")
    loaded = anisoscope.Remedy.load(tmp_path / "map.safetensors")
    queries = rows[:5] + 0.1
    assert (loaded.apply(queries) == fitted.apply(queries)).all()
    assert (loaded.name, loaded.rows, loaded.d, loaded.shrinkage) == (
        "centre, remove top 1, whiten", 300, 8, fitted.shrinkage,
    )  # fmt: skip
    with safe_open(tmp_path / "map.safetensors", "pt") as file:
        assert file.metadata()["anisoscope"] == anisoscope.__version__


def test_the_result_has_the_type_of_the_rows(rows: np.ndarray[Any, Any]) -> None:
    remedy = fit_remedy(rows, centre=True, whiten=True)
    expected = remedy.apply(rows)
    half = remedy.apply(torch.as_tensor(rows).half())
    assert half.dtype == torch.float16
    assert half.double().numpy() == pytest.approx(expected, abs=0.02)  # rows below 12, so rounding moves them < 0.01
    assert remedy.apply(rows.astype(np.float32)).dtype == np.float32
    frame = pd.DataFrame(rows, index=[f"row {i}" for i in range(len(rows))], columns=list("abcdefgh"))
    table = remedy.apply(frame)
    assert (list(table.index), list(table.columns)) == (list(frame.index), list(frame.columns))
    assert table.to_numpy() == pytest.approx(expected)
    assert fit_remedy(frame, centre=True).apply(frame).to_numpy().mean(0) == pytest.approx(np.zeros(8), abs=1e-12)
    assert remedy.apply(rows.tolist()) == pytest.approx(expected)
    assert remedy.apply(np.ones((2, 8), dtype=int)).dtype == np.float64


def test_rows_of_another_width_are_refused(rows: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError, match="fitted on rows of 8 numbers, but these rows have 5"):
        fit_remedy(rows, centre=True).apply(rows[:, :5])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_rows_that_are_not_finite_are_refused(rows: np.ndarray[Any, Any], value: float) -> None:
    rows[7, 3] = value
    with pytest.raises(InputError, match="NaN or Inf"):
        fit_remedy(rows, centre=True)


def test_impossible_options_are_refused(rows: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError, match="Cannot remove 8 of 8"):
        fit_remedy(rows, remove_top=8)
    with pytest.raises(InputError, match="shrinkage is 2"):
        fit_remedy(rows, whiten=True, shrinkage=2)
    with pytest.raises(InputError, match="do not vary"):
        fit_remedy(np.ones((3, 2)), centre=True)
    with pytest.raises(InputError, match="no variance and cannot be whitened"):
        fit_remedy(np.column_stack([rows, rows[:, 0]]), whiten=True, shrinkage=0.0)


def change_number(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    arrays["matrix"][0, 0] += 1
    save_file(arrays, path, metadata=facts)


def change_width(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    save_file(arrays, path, metadata={**facts, "d": "9"})


def claim_a_huge_width(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    save_file(arrays, path, metadata={**facts, "d": "999999999"})


def add_an_array(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    save_file({**arrays, "more": torch.ones(3)}, path, metadata=facts)


def drop_the_facts(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    save_file(arrays, path)


def drop_the_width(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    save_file(arrays, path, metadata={name: text for name, text in facts.items() if name != "d"})


def cut_it_short(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def store_other_numbers(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    Remedy(arrays["centre"].float(), arrays["matrix"].float()).save(path)


def store_infinity(path: Path, facts: dict[str, str], arrays: dict[str, torch.Tensor]) -> None:
    Remedy(arrays["centre"] * torch.inf, arrays["matrix"]).save(path)


DAMAGE = {
    change_number: "do not match their digest",
    change_width: "has other arrays",
    claim_a_huge_width: "has other arrays",
    add_an_array: "has other arrays",
    drop_the_facts: "holds no map",
    drop_the_width: "damaged",
    cut_it_short: "damaged",
    store_other_numbers: "finite float64",
    store_infinity: "finite float64",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_refused_with_the_reason(damage: Any, rows: np.ndarray[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    fit_remedy(rows, centre=True).save(path)
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    damage(path, facts, load_file(path))
    with pytest.raises(InputError, match=DAMAGE[damage]):
        Remedy.load(path)


def test_a_map_is_a_safetensors_file(rows: np.ndarray[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.safetensors"):
        fit_remedy(rows, centre=True).save(tmp_path / "map.pt")
    with pytest.raises(InputError, match="No such file"):
        Remedy.load(tmp_path / "map.safetensors")
