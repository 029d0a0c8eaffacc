"""Files of a training: checkpoints that `measure` opens, and the state from which it resumes exactly."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from anisoscope.errors import StoreError, first_line
from anisoscope.store.files import TEMPORARY, file_errors, replacing, sweep_temporaries
from anisoscope.studies.lab.token_data import Data
from anisoscope.studies.lab.tokens import save_tokenizer
from anisoscope.studies.lab.transformer import MODEL_TYPE, Transformer

CHECKPOINTS, STATE = "checkpoints", "state.pt"


def save_checkpoint(model: Transformer, data: Data, run: Path, step: int) -> Path:
    """Write run/checkpoints/step-N with configuration, weights and tokenizer, either completely or not at all.

    `measure`, `open_model` and `sweep` open the folder like any other model.
    """
    folder = run / CHECKPOINTS / f"step-{step}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}{TEMPORARY}")
    with file_errors("write", folder), _removed_on_error(temporary):
        sweep_temporaries(folder.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        config = {"model_type": MODEL_TYPE, "step": step, **asdict(model.config)}
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_tokenizer(data.tokenizer, temporary)
        save_file(_weights(model), temporary / "model.safetensors", {"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)  # a resumed training writes its later steps again
        os.replace(temporary, folder)
    return folder


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    """Delete a half-written folder on error: the disk may be full."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _weights(model: Transformer) -> dict[str, torch.Tensor]:
    """The tensors to save; a tied output matrix is saved only as the embedding."""
    tied = {"head.weight"} if model.config.tied else set()
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items() if name not in tied}


def save_state(run: Path, state: dict[str, Any]) -> None:
    """Save everything that the next step depends on, replacing the previous state."""
    path = run / STATE
    data = io.BytesIO()  # torch does not report why it cannot write to a file
    torch.save(state, data)
    with file_errors("write", path), replacing(path) as temporary:
        temporary.write_bytes(data.getbuffer())


def is_begun(run: Path) -> bool:
    """Return whether a training has reached its first step; one that was killed earlier starts from the beginning."""
    return (run / STATE).is_file() or (run / CHECKPOINTS).is_dir()


def load_state(run: Path) -> dict[str, Any]:
    """Load what `save_state` wrote: tensors and plain values only, without executing code.

    Raises:
        StoreError: There is no state, or it is damaged.
    """
    path = run / STATE
    if not path.is_file():
        raise StoreError(f"{run} has no {STATE} to resume from. Train again in another folder.")
    with file_errors("read", path):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            reason = "opening it would run code that it contains, or it is damaged"
            raise StoreError(f"Cannot read {path}: {reason}. Train again in another folder.") from error
        except Exception as error:  # damaged archives raise dozens of kinds
            raise StoreError(f"Cannot read {path} ({first_line(error)}). Train again in another folder.") from error
    if not isinstance(state, dict):
        raise StoreError(f"{path} is not the state of a training. Train again in another folder.")
    return state
