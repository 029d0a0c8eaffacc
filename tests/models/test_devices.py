"""Half precision is tried before it is used; unknown dtypes and devices are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models import devices as where
from anisoscope.models.open import open_model
from tests import model_folders as made


def test_half_precision_becomes_float32_on_a_cpu_and_info_records_it(tmp_path: Path) -> None:
    model = made.hf.GPT2LMHeadModel(made.gpt2_config()).bfloat16()
    folder = made.save(tmp_path / "half", model, made.byte_pairs())
    opened = open_model(folder, device="cpu", head=True)
    assert (opened.info["dtype"], opened.info["stored_dtype"]) == ("float32", "bfloat16")
    assert torch.equal(opened.model.state_dict()["transformer.wte.weight"], model.transformer.wte.weight.float())
    made.as_pickle(folder)
    assert open_model(folder, device="cpu", allow_pickle=True).info["dtype"] == "float32"


def test_requested_half_precision_is_tried_in_another_process(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.dtype] = []

    def fails(dtype: torch.dtype) -> str | None:
        tried.append(dtype)
        return "the trial was killed by signal 4" if len(tried) == 1 else None

    monkeypatch.setattr(where, "half_fails", fails)
    with pytest.raises(InputError, match=r"bfloat16 does not work on this CPU \(the trial was killed by signal 4\)"):
        open_model(gpt2, dtype="bf16", device="cpu")
    assert open_model(gpt2, dtype=torch.bfloat16, device="cpu").info["dtype"] == "bfloat16"
    assert tried == [torch.bfloat16] * 2


def test_a_killed_trial_is_distinguished_from_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(code: int, said: str) -> str | None:
        where.half_fails.cache_clear()
        done = SimpleNamespace(returncode=code, stderr=said)
        monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
        return where.half_fails(torch.bfloat16)

    assert run(0, "") is None
    assert run(-4, "") == "the trial was killed by signal 4"
    assert run(1, "Traceback\nRuntimeError: no kernel") == "RuntimeError: no kernel"
    where.half_fails.cache_clear()


def test_unknown_dtypes_and_devices_are_refused(gpt2: Path) -> None:
    with pytest.raises(InputError, match=r"(?i)did you mean .?bfloat16"):
        open_model(gpt2, dtype="bflaot16")
    with pytest.raises(InputError, match="is not a device"):
        open_model(gpt2, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="0 CUDA devices"):
            open_model(gpt2, device="cuda")
