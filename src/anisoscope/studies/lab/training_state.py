"""What a training leaves behind: models that `measure` opens, and the one state from which it can go on exactly."""

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
from anisoscope.store.files import TEMPORARY, explained, replacing, sweep_temporaries
from anisoscope.studies.lab.data import Data
from anisoscope.studies.lab.tokens import save_tokenizer
from anisoscope.studies.lab.transformer import MODEL_TYPE, Transformer

CHECKPOINTS, STATE = "checkpoints", "state.pt"


def save_checkpoint(model: Transformer, data: Data, run: Path, step: int) -> Path:
    """Write run/checkpoints/step-N: the configuration, the weights and the tokenizer, all of it or nothing.

    `measure`, `open_model` and `sweep` take the folder like any other model's.
    """
    folder = run / CHECKPOINTS / f"step-{step}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}{TEMPORARY}")
    with explained("write", folder), _removed_on_error(temporary):
        sweep_temporaries(folder.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        config = {"model_type": MODEL_TYPE, "step": step, **asdict(model.config)}
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_tokenizer(data.tokenizer, temporary)
        save_file(_weights(model), temporary / "model.safetensors", {"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)  # a training that was resumed writes its later steps again
        os.replace(temporary, folder)
    return folder


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    """A half-written folder goes: the space may be what is lacking."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _weights(model: Transformer) -> dict[str, torch.Tensor]:
    """The tensors to save; an output matrix that is the embedding is saved once, as that."""
    tied = {"head.weight"} if model.config.tied else set()
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items() if name not in tied}


def save_state(run: Path, state: dict[str, Any]) -> None:
    """Keep what the next step depends on, replacing what was kept before."""
    path = run / STATE
    data = io.BytesIO()  # torch would not say why it could not write to a file
    torch.save(state, data)
    with explained("write", path), replacing(path) as temporary:
        temporary.write_bytes(data.getbuffer())


def is_begun(run: Path) -> bool:
    """Whether a training has come to its first step; one that was killed before that starts there."""
    return (run / STATE).is_file() or (run / CHECKPOINTS).is_dir()


def load_state(run: Path) -> dict[str, Any]:
    """What `save_state` kept; tensors and plain values only, nothing is executed."""
    path = run / STATE
    if not path.is_file():
        raise StoreError(f"{run} has no {STATE} to go on from; train it again in another folder")
    with explained("read", path):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            told = "opening it would run code that it carries, or it is damaged"
            raise StoreError(f"{path}: {told}; train again in another folder") from error
        except Exception as error:  # damaged archives raise dozens of kinds
            raise StoreError(f"{path} cannot be read ({first_line(error)}); train again in another folder") from error
    if not isinstance(state, dict):
        raise StoreError(f"{path} is no state of a training; train again in another folder")
    return state
