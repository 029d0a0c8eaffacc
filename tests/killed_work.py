"""Tasks for the kill tests: the six drivers on tiny models, each as a user starts it and resumes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anisoscope import Tracker, alerts, cli
from anisoscope.measurement import resume as partial
from anisoscope.schedule import every
from anisoscope.store.files import replacing
from anisoscope.studies.atlas import atlas_runs, packages
from tests import model_folders, training
from tests.studies.atlas.fake_index import index_of
from tests.studies.atlas.tiny_registry import tiny_registry
from tests.sweep_folders import checkpoint_series, documents

STEPS = 8


def make_material(folder: Path) -> Path:
    """Checkpoints and a text that all tasks share."""
    checkpoint_series(folder / "train", (0, 100, 200))
    documents(folder / "text.jsonl")
    (folder / "text.txt").write_text(" ".join(model_folders.WORDS.split()[i * i % 40] for i in range(3000)))
    return folder


def command(*arguments: object) -> None:
    """Run a command as in a terminal; an exit code other than 0 is a failure."""
    sys.argv = ["anisoscope", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{sys.argv} ended with {end.code}") from end


SMALL = ("--tokens", 400, "--window", 32, "--batch", 2)


def measure(material: Path, folder: Path) -> None:
    """Every layer of a model; the state of the pass is stored after every batch."""
    partial.SAVED_EVERY, partial._PRICE = -1.0, 0.0
    chosen = ("--metrics", "mean_cosine,spectral_anisotropy,two_nn,attention_entropy", "--sites", "resid,pattern")
    source = material / "train" / "checkpoint-0"
    command("measure", source, "--text", material / "text.jsonl", *SMALL, *chosen, "--out", folder / "run", "--json")


def sweep(material: Path, folder: Path) -> None:
    chosen = ("--metrics", "mean_cosine,two_nn", "--sites", "resid")
    command("sweep", material / "train", "--text", material / "text.jsonl", *SMALL, *chosen, "--out", folder / "run")


def lab(material: Path, folder: Path) -> None:
    """A tracked training, resumed if it has begun."""
    size = ("--layers", 1, "--width", 16, "--heads", 2, "--context", 16, "--batch", 2, "--steps", STEPS)
    command("lab", "train", *size, "--text", material / "text.txt", "--out", folder / "run")


def track(material: Path, folder: Path) -> None:
    """A user's training loop with a checkpoint every third step."""
    model, start = training.small_model(n_layer=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0), 0
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    saved = folder / "mine.pt"
    if saved.is_file():
        state: dict[str, Any] = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
    run = folder / "run"
    rules = [
        alerts.collapse(below=2.0, probes=2, after=0),
        alerts.dimension_fell(by=0.01, after=0),
        alerts.high_cosine(above=-1.0, after=0),
    ]
    options: dict[str, Any] = {"schedule": every(1), "bars_every": 3, "alerts": rules, "sample": 64}
    options["optimizer"] = optimiser  # known from the first step on, also after a restart
    with Tracker(
        model, training.held_out(), run, resume=start if (run / "run.json").is_file() else None, **options
    ) as tracker:
        for step in range(start, STEPS):
            if step % 3 == 0:
                tracker.flush()
                state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
                with replacing(saved) as temporary:
                    torch.save(state, temporary)
            tracker.probe(step)
            model(**training.words(100 * step))["loss"].backward()
            tracker.watch(step)
            optimiser.step()
            optimiser.zero_grad()


def claims(material: Path, folder: Path) -> None:
    """A claim, judged on a model of the user."""
    model = ("--model", material / "train" / "checkpoint-0", "--text", material / "text.jsonl", "--size", "tiny")
    command("claims", "run", "A4", *model, "--out", folder / "run")


def atlas(material: Path, folder: Path) -> None:
    """A model from a package to its evidence; measured in this process, not in a new one."""
    packages.pip_indexes = lambda: index_of(folder / "index")
    atlas_runs.run_subjects = _measured_here
    known = tiny_registry(folder / "index")
    outcome = atlas_runs.measure_atlas(list(known.models.values()), known, folder / "run", folder / "evidence")
    if outcome.failed:
        raise RuntimeError(str(outcome.failed))


def _measured_here(subjects: dict[Any, Any], workers: int = 1, *, again: bool = False) -> Iterator[tuple[Any, Any]]:
    for key, subject in subjects.items():
        yield key, atlas_runs.finished_cost(subject) or atlas_runs.measure_subject(subject, again)


WORKS, LONG_WORKS = (measure, track, sweep, lab), (claims, atlas)


def named(records: Any) -> list[Any]:
    """Records without the name of their run."""
    return [replace(record, run="") for record in records]
