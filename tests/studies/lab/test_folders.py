"""Checkpoints of the lab."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.measurement.measure_model import measure
from anisoscope.models.checkpoints import checkpoints
from anisoscope.models.open import open_model
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.token_data import open_data
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.training_state import load_state
from anisoscope.studies.lab.transformer import Transformer
from tests import model_folders as made

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 12, "learning_rate": 0.01}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


def test_checkpoints_are_kept_at_log_spaced_steps_and_open_like_any_model(tmp_path: Path) -> None:
    done = train(tiny(tied=False), tmp_path / "run")
    found = checkpoints(done.folder)
    assert [c.step for c in found] == [0, 1, 2, 4, 8, 12]
    opened = open_model(found[-1].source)
    assert opened.info["lab"]["step"] == 12
    assert opened.info["max_positions"] == 16
    trained = Transformer(done.experiment.model)
    trained.load_state_dict(load_state(done.folder)["model"])
    with torch.no_grad():
        ids = torch.arange(12)[None]
        assert torch.equal(opened.model(ids).logits, trained.eval()(ids).logits)
    run = measure(found[-1].source, text=["A text that the model has not seen. " * 10] * 4, metrics=["mean_cosine"])
    assert {r.site for r in run.records()} == {"embed", "resid.0", "resid.1", "final"}
    assert all(r.value is not None for r in run.records())


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    done = train(tiny(steps=1), tmp_path / "run")
    folder = done.folder / "checkpoints" / "step-1"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layers": 3}))
    with pytest.raises(InputError, match="do not fit"):
        open_model(folder)
    assert checkpoints(done.folder)[0].problem is None


def test_the_tokens_of_a_checkpoint_are_those_of_the_training(tmp_path: Path) -> None:
    for kind in ("char", "byte", "bpe"):
        done = train(tiny(steps=1, tokens=kind), tmp_path / kind)
        tokenizer: Any = open_model(done.folder / "checkpoints" / "step-1").processor
        data = open_data(done.folder / "data")
        text = data.tokenizer.decode(data.train[:200].tolist())
        expected = data.tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected


def lab(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "anisoscope", "lab", *map(str, arguments)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "run"
    switches = {"layers": 1, "width": 8, "heads": 2, "context": 16, "steps": 2, "batch": 2}
    train(changed(Experiment(), switches), folder)
    return folder


def test_a_lab_checkpoint_with_an_absurd_config_is_refused_before_memory_is_allocated(
    trained: Path, tmp_path: Path
) -> None:
    for name, value in (("vocabulary", 10**9), ("layers", 10**9), ("context", 10**9), ("mlp", 10**9), ("width", 10**6)):
        folder = tmp_path / name
        shutil.copytree(trained / "checkpoints" / "step-2", folder)
        made.change_json(folder / "config.json", **{name: value})
        with pytest.raises(InputError, match=r"(?i)copy the checkpoint again"):
            open_model(folder)
