"""Twins: trainings with the same initial weights, data and order that differ in some switches."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.store.files import file_errors, write_text
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.effects import Effect
from anisoscope.studies.lab.experiment import Experiment
from anisoscope.studies.lab.token_data import prepare
from anisoscope.studies.lab.train import Trained, train
from anisoscope.studies.lab.training_run import DATA, discard_training, require_same_training

EFFECTS = "effects.json"  # in the folder of the comparison


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
    (Path(out) / EFFECTS).unlink(missing_ok=True)  # they are those of the deleted runs


def effect_rows(effects: Mapping[str, Sequence[Effect]]) -> list[dict[str, Any]]:
    """Return effects by metric as plain JSON: one row per metric and effect."""
    return [{"metric": metric, **effect.to_json()} for metric, listed in effects.items() for effect in listed]


def write_effects(effects: Mapping[str, Sequence[Effect]], out: str | Path) -> None:
    """Write effects by metric to `effects.json` in the folder of the comparison."""
    path = Path(out) / EFFECTS
    with file_errors("write", path):
        write_text(path, json.dumps(effect_rows(effects), indent=1) + "\n")


def prepare_cell(cell: Experiment, out: str | Path) -> None:
    """Tokenise the text of an experiment as `train_cell` does, before several processes train on it."""
    recipe = cell.recipe
    text, context = open_text(recipe.text), cell.model.context
    prepare(text, _tokens(cell, out), tokens=recipe.tokens, symbols=recipe.symbols, context=context)


def _tokens(cell: Experiment, out: str | Path) -> Path:
    recipe = cell.recipe
    key = zlib.crc32(f"{recipe.text} {recipe.tokens} {recipe.symbols}".encode())
    return Path(out) / DATA / f"{key:08x}"
