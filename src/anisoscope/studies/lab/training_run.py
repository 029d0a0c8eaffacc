"""The run folder of a training: create it, recognise it, compare it with a request, discard it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.run_output import discard_run, require_same_settings
from anisoscope.store.files import WriterLock, file_errors, parse_errors
from anisoscope.store.run import Run
from anisoscope.store.run_header import require_usable_folder
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.experiment import Experiment
from anisoscope.studies.lab.losses import LOSSES
from anisoscope.studies.lab.token_data import Data, prepare
from anisoscope.studies.lab.training_state import CHECKPOINTS, STATE

DATA = "data"
LOCK = "training.lock"  # against two trainings of one run; the lock of the run belongs to the observer
_PARTS = (DATA, CHECKPOINTS, STATE, LOSSES, LOCK)  # what the run folder holds besides the records


def is_training(out: str | Path) -> bool:
    """Return whether a folder holds a training.

    Raises:
        InputError: The folder is a run of something else.
    """
    if not (Path(out) / "run.json").is_file():
        return False
    if Run.open(out).info.get("kind") != "lab":
        raise InputError(f"{out} is a run, but not a training of the lab. Choose another folder.")
    return True


def is_complete(folder: Path) -> bool:
    """Whether a training in this folder has reached its last step."""
    ended = Run.open(folder).info.get("ended") if (folder / "run.json").is_file() else None
    return isinstance(ended, dict) and ended.get("stopped") is None


def require_same_training(experiment: Experiment, out: str | Path, *, track: bool) -> None:
    """Refuse a folder that holds a training with other switches, and name those that differ.

    Args:
        experiment: The training that is wanted.
        out: A run folder; one that is new or empty is accepted.
        track: Whether the training is observed.

    Raises:
        StoreError: The folder holds another training.
    """
    if is_training(out):
        require_same_settings(out, _settings(experiment, track))


def discard_training(out: str | Path) -> None:
    """Delete the training in a folder, if there is one.

    Raises:
        StoreError: Another process is training there, or the folder holds files that are not part of the training.
    """
    folder = Path(out)
    if is_training(folder):
        WriterLock(folder / LOCK).release()
    discard_run(folder, *_PARTS)


def _settings(experiment: Experiment, track: bool) -> dict[str, Any]:
    return {**experiment.flat(), "track": track}


def create_training(experiment: Experiment, folder: Path, data: Path | None, track: bool, command: str | None) -> None:
    """Create the run folder, complete or not at all: a killed process must leave no run that can never be resumed."""
    recipe = experiment.recipe
    if folder.is_dir():
        require_usable_folder(folder, resume=False)
    with file_errors("create", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    # Tokenise in a temporary folder first: a text that cannot be used must leave no incomplete run.
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix=_prefix(folder), dir=folder.parent))
        stack.callback(WriterLock(Path(temporary) / LOCK).release)
        tokens = Path(temporary) / DATA if data is None else data
        context = experiment.model.context
        text = prepare(open_text(recipe.text), tokens, tokens=recipe.tokens, symbols=recipe.symbols, context=context)
        info = {
            "kind": "lab",
            "settings": _settings(experiment, track),
            "experiment": _fitted(experiment, text).to_json(),
            "data": {**text.info, "folder": DATA if data is None else os.path.relpath(tokens, folder)},
            "baselines": text.baselines,
            "libraries": {"torch": torch.__version__},
        }
        made = Path(temporary) / "run"
        Run.create(made, info, name=folder.name, command=command).close()
        if data is None:
            os.replace(tokens, made / DATA)
        with file_errors("create", folder):
            if folder.is_dir():
                folder.rmdir()  # empty; some systems cannot replace a folder by another
            os.replace(made, folder)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.creating-"


def _remove_abandoned(folder: Path) -> None:
    """Delete the temporary folders of killed processes; one that is in use is locked."""
    for left in folder.parent.iterdir():
        if left.name.startswith(_prefix(folder)):
            with suppress(StoreError, OSError):
                WriterLock(left / LOCK).release()
                shutil.rmtree(left)


def experiment_of(out: str | Path) -> Experiment:
    """Return the experiment of a run folder.

    Raises:
        InputError: The folder is a run of something else.
    """
    is_training(out)
    with parse_errors(Path(out) / "run.json", "restore it from a copy, or train again (--overwrite)", StoreError):
        return Experiment.from_json(Run.open(out).info["experiment"])


def _fitted(experiment: Experiment, data: Data) -> Experiment:
    """The experiment with a vocabulary that holds the tokens of the text."""
    rows = experiment.model.vocabulary
    if rows is not None and rows < data.vocabulary:
        raise InputError(
            f"The text has {data.vocabulary} tokens, the model's embedding {rows} rows. Leave vocabulary out, "
            f"or use fewer tokens (symbols={max(2, rows - 2)})."
        )
    return replace(experiment, model=replace(experiment.model, vocabulary=rows or data.vocabulary))
