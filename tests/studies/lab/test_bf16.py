"""bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.studies.lab.bf16 import require_bf16
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.training_state import load_state

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 12, "learning_rate": 0.01}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


def test_bfloat16_is_tried_in_another_process_first() -> None:
    with pytest.raises(InputError, match="trial in another process failed"):
        require_bf16("nonsense")


@pytest.mark.slow
def test_bfloat16_trains_if_the_cpu_supports_it(tmp_path: Path) -> None:
    try:
        require_bf16("cpu")
    except InputError:
        return  # this CPU cannot, and message so instead of dying
    done = train(tiny(bf16=True, steps=3), tmp_path / "run")
    assert done.stopped is None
    assert load_state(tmp_path / "run")["model"]["tokens.weight"].dtype == torch.float32
