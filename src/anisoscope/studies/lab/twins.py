"""Twins: trainings with the same initial weights, data and order that differ in one switch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.store.run import Run
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.experiment import Experiment
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.token_data import prepare
from anisoscope.studies.lab.train import Trained, experiment_of, resume_training, train


def over_seeds(cells: Mapping[str, Experiment], seeds: int) -> dict[str, Experiment]:
    """Return every experiment with several seeds, seed by seed, so that pairs are complete early.

    >>> list(over_seeds({"a": Experiment(), "b": Experiment()}, 2))
    ['a', 'b', 'a-seed-1', 'b-seed-1']
    """
    experiments = {}
    for extra in range(seeds):
        for name, cell in cells.items():
            seed = cell.recipe.seed + extra
            experiments[name if extra == 0 else f"{name}-seed-{seed}"] = replace(
                cell, recipe=replace(cell.recipe, seed=seed)
            )
    return experiments


def train_cell(cell: Experiment, out: str | Path, name: str, *, resume: bool = False, **options: Any) -> Trained:
    """Train one experiment into out/name; experiments with the same text and tokenizer share tokens in out/data.

    Args:
        cell: The experiment.
        out: Folder of the comparison.
        name: Name of the run folder.
        resume: Read a complete training, and continue one that stopped; otherwise the folder must be new.
        **options: Options of `train`.

    Raises:
        InputError: The folder has a training with other switches.
    """
    folder = Path(out) / name
    if resume and (folder / "run.json").is_file():
        return _resume(cell, folder, options)
    return train(cell, folder, data=_tokens(cell, out), **options)


def prepare_cell(cell: Experiment, out: str | Path) -> None:
    """Tokenise the text of an experiment as `train_cell` does, before several processes train on it."""
    recipe = cell.recipe
    text, context = open_text(recipe.text), cell.model.context
    prepare(text, _tokens(cell, out), tokens=recipe.tokens, symbols=recipe.symbols, context=context)


def _tokens(cell: Experiment, out: str | Path) -> Path:
    recipe = cell.recipe
    key = zlib.crc32(f"{recipe.text} {recipe.tokens} {recipe.symbols}".encode())
    return Path(out) / "data" / f"{key:08x}"


def _resume(cell: Experiment, folder: Path, options: dict[str, Any]) -> Trained:
    stored = experiment_of(folder)
    if (
        replace(stored, model=replace(stored.model, vocabulary=cell.model.vocabulary)) != cell
    ):  # filled in by the training
        raise InputError(f"{folder} was trained with other switches. Choose another folder.")
    info = Run.open(folder).info
    if info.get("ended", {}).get("step") == stored.recipe.steps:
        return Trained(folder, stored, stored.recipe.steps, None, read_losses(folder), info["baselines"], 0.0)
    return resume_training(folder, **{name: value for name, value in options.items() if name != "command"})
