"""Weights are rounded as in a GGUF file, and a metric is marked when rounding moves it beyond its error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anisoscope.errors import InputError
from anisoscope.studies.atlas.quantisation import read_study, round_weights, shifts, write_study


def folder_with(path: Path, **tensors: torch.Tensor) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return path


def q8_oracle(weight: np.ndarray) -> np.ndarray:
    """Round blocks of 32 weights to 8 bits with one scale in half precision, in plain numpy."""
    blocks = weight.reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    return (np.rint(blocks / scale) * scale.astype(np.float16).astype(np.float32)).reshape(weight.shape)


def test_matrices_are_rounded_and_norms_are_kept(tmp_path: Path) -> None:
    weight, norm = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), torch.randn(64)
    folder = folder_with(tmp_path / "model", weight=weight, norm=norm, odd=torch.ones(4, 33))
    rounded = load_file(round_weights(folder, tmp_path / "q8", "Q8_0") / "model.safetensors")
    # ties may round either way: one step of a block is at most max/127
    assert np.abs(rounded["weight"].numpy() - q8_oracle(weight.numpy())).max() <= float(weight.abs().max()) / 127
    assert not torch.equal(rounded["weight"], weight)
    assert torch.equal(rounded["norm"], norm)
    assert torch.equal(rounded["odd"], torch.ones(4, 33))


def test_four_bits_move_weights_further_than_eight(tmp_path: Path) -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    folder = folder_with(tmp_path / "model", weight=weight)
    far = {
        kind: (load_file(round_weights(folder, tmp_path / kind, kind) / "model.safetensors")["weight"] - weight).norm()
        for kind in ("Q8_0", "Q4_0")
    }
    assert far["Q4_0"] > 5 * far["Q8_0"]  # sixteen times coarser


def test_a_model_without_matrices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing can be rounded"):
        round_weights(folder_with(tmp_path / "model", norm=torch.ones(8)), tmp_path / "out", "Q8_0")


def test_shifts_compare_the_same_sites_in_error_bars(tmp_path: Path) -> None:
    first = [["embed", 1.0, None, None], ["resid.0", 10.0, 0.5, None], ["resid.1", 10.0, 1.0, None]]
    second = [["embed", 5.0, None, None], ["resid.0", 10.2, 0.5, None], ["resid.1", 9.9, 1.0, None]]
    exact, close = {"two_nn": {"all": first}}, {"two_nn": {"all": second}}
    results = {"m": {"exact": {"profiles": exact}, "Q8_0": {"profiles": close}}}
    write_study(results, tmp_path / "study.json")
    (shift,) = shifts(read_study(tmp_path / "study.json"))
    assert (round(shift.change, 3), round(shift.errors, 3), shift.layers, shift.moved) == (0.15, 0.25, 0.0, False)
    assert read_study(tmp_path / "absent.json") == {}
