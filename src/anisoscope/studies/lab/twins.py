"""Twins: trainings with the same initial weights, data and order that differ in one switch."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.experiment import Experiment
from anisoscope.studies.lab.token_data import prepare
from anisoscope.studies.lab.train import Trained, train
from anisoscope.studies.lab.training_run import DATA, discard_training, require_same_training


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


def train_cell(cell: Experiment, out: str | Path, name: str, **options: Any) -> Trained:
    """Train one experiment into out/name, or resume it there as `train` does.

    Experiments with the same text and tokenizer share tokens in out/data.

    Args:
        cell: The experiment.
        out: Folder of the comparison.
        name: Name of the run folder.
        **options: Options of `train`.
    """
    return train(cell, Path(out) / name, data=_tokens(cell, out), **options)


def require_same_cells(cells: Mapping[str, Experiment], out: str | Path, *, track: bool) -> None:
    """Refuse a folder in which one of these experiments has other switches, before any of them is trained.

    Raises:
        StoreError: The message names the run and the switches that differ.
    """
    for name, cell in cells.items():
        require_same_training(cell, Path(out) / name, track=track)


def discard_cells(cells: Iterable[str], out: str | Path) -> None:
    """Delete the runs of some experiments in a folder, and the tokens that no other run uses.

    Raises:
        StoreError: A run is being written, or its folder holds files that are not part of it.
    """
    for name in cells:
        discard_training(Path(out) / name)
    if not any(Path(out).glob("*/run.json")):
        shutil.rmtree(Path(out) / DATA, ignore_errors=True)


def prepare_cell(cell: Experiment, out: str | Path) -> None:
    """Tokenise the text of an experiment as `train_cell` does, before several processes train on it."""
    recipe = cell.recipe
    text, context = open_text(recipe.text), cell.model.context
    prepare(text, _tokens(cell, out), tokens=recipe.tokens, symbols=recipe.symbols, context=context)


def _tokens(cell: Experiment, out: str | Path) -> Path:
    recipe = cell.recipe
    key = zlib.crc32(f"{recipe.text} {recipe.tokens} {recipe.symbols}".encode())
    return Path(out) / DATA / f"{key:08x}"
