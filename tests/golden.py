"""Golden results: every record and replicate of a set of small measurements, to compare before and after a change.

    python -m tests.golden take FOLDER      # on the code before the change
    python -m tests.golden compare FOLDER   # on the code after it: ends with 1 and the first differences if any

A refactoring must not move a number by a bit. Results depend on the processor, so they are taken and compared on one
machine and never committed. Each case uses public names only, so that moving modules does not touch this file.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import anisoscope
from anisoscope.cli import app
from anisoscope.schedule import every
from tests import model_folders
from tests.ranks import join_group, leave_group
from tests.sweep_folders import checkpoint_series, documents
from tests.tiny_models import build
from tests.training import Stack, held_out, small_model, train, words

Case = Callable[[Path], None]
CASES: dict[str, Case] = {}
SITES = ["embed", "resid", "attn", "mlp", "q", "k", "pattern", "final"]
CALM: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NOT_COMPARED = {"time", "seconds", "created", "note", "sizes"}  # texts, times, and what older versions did not store


def case(work: Case) -> Case:
    CASES[work.__name__] = work
    return work


def run_command(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})
    assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
    return done.output


@case
def measure_text(folder: Path) -> None:
    model, text = model_folders.gpt2(folder / "model"), documents(folder / "text.jsonl")
    request: dict[str, Any] = {"tokens": 700, "window": 32, "batch": 3, "sites": SITES, "weights": True}
    anisoscope.measure(model, text=text, **request, generate=4, keep_statistics=True, out=folder / "run")
    anisoscope.recompute(folder / "run", ["rankme"])
    anisoscope.measure(model, text=text, tokens=600, window=32, batch_tokens=100, seed=3, out=folder / "batches")


@case
def measure_command(folder: Path) -> None:
    model, text = model_folders.gpt2(folder / "model"), documents(folder / "text.jsonl")
    options = ["--tokens", "500", "--window", "32", "--metrics", "mean_cosine,isoscore,two_nn"]
    run_command("measure", model, "--text", text, *options, "--out", folder / "run")
    run_command("measure", model, "--weights", "--out", folder / "weights")


@case
def measure_other_modalities(folder: Path) -> None:
    for name in ("bert", "t5", "vit", "wav2vec2", "whisper", "resnet", "mamba", "llama"):
        model, inputs = build(name)
        anisoscope.measure(model, [inputs, inputs], out=folder / name)


@case
def measure_vectors(folder: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((900, 24)) * np.arange(1, 25) ** -0.5 + 0.3
    np.save(folder / "rows.npy", rows)
    anisoscope.measure_rows(rows, documents=np.arange(900) // 7, keep_blocks=True, out=folder / "run")
    anisoscope.measure_rows(folder / "rows.npy", precise=True, out=folder / "file")


def _measure_on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, 2)
    request: dict[str, Any] = {"tokens": 700, "window": 32, "sites": ["embed", "resid", "pattern"], "batch": 2}
    request |= {"distributed": True, "keep_statistics": True, "out": folder / "run"}
    anisoscope.measure(folder / "model", text=folder / "text.jsonl", **request)
    leave_group()


@case
def measure_on_two_ranks(folder: Path) -> None:
    model_folders.gpt2(folder / "model")
    documents(folder / "text.jsonl")
    spawn(_measure_on_rank, args=(folder,), nprocs=2)


def _track(model: Any, folder: Path, steps: int = 40, **options: Any) -> None:
    tangent = anisoscope.Tangent(proxies=["pca", "semi_nmf"], ranks=[4])
    tracker = anisoscope.Tracker(
        model, held_out(), folder / "run", schedule=every(8), bars_every=2, tangent=tangent, **options
    )
    train(model, tracker, range(steps))
    tracker.close()


@case
def track_plain(folder: Path) -> None:
    _track(small_model(), folder)


@case
def track_compiled(folder: Path) -> None:
    _track(torch.compile(Stack(), backend="eager"), folder)


@case
def track_checkpointed(folder: Path) -> None:
    model = small_model(**CALM)
    model.gradient_checkpointing_enable()
    _track(model, folder)


def _track_on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, 2)
    model = DistributedDataParallel(small_model(**CALM))
    tracker = anisoscope.Tracker(model, held_out(), folder / "run", schedule=every(8), bars_every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        tracker.probe(step)
        half = {name: x[2 * rank : 2 * rank + 2] for name, x in words(step).items()}
        model(**half).loss.backward()
        tracker.watch(step)
        optimizer.step()
        optimizer.zero_grad()
    tracker.close()
    leave_group()


@case
def track_on_two_ranks(folder: Path) -> None:
    spawn(_track_on_rank, args=(folder,), nprocs=2)


@case
def tangent(folder: Path) -> None:
    model, text = model_folders.gpt2(folder / "model"), documents(folder / "text.jsonl", 120)
    options = ["--tokens", "1200", "--window", "16", "--rank", "4", "--ranks", "4,8"]
    run_command("tangent", model, "--text", text, *options, "--out", folder / "run")


@case
def sweep(folder: Path) -> None:
    series, text = checkpoint_series(folder / "train"), documents(folder / "text.jsonl")
    options = ["--tokens", "500", "--window", "32", "--sites", "embed,resid,pattern"]
    run_command("sweep", series, "--text", text, *options, "--out", folder / "run")


@case
def lab(folder: Path) -> None:
    sizes = ["--layers", "2", "--width", "16", "--heads", "2", "--context", "32", "--batch", "4", "--steps", "20"]
    run_command("lab", "train", *sizes, "--out", folder / "run")


@case
def claims(folder: Path) -> None:
    run_command("claims", "run", "--size", "tiny", "--out", folder / "run")


def results(folder: Path) -> dict[str, list[str]]:
    """The records and replicates of every run below a folder, one line of JSON per result, without times."""
    found: dict[str, list[str]] = {}
    for path in sorted([*folder.rglob("records.jsonl"), *folder.rglob("replicates.jsonl")]):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for column in NOT_COMPARED & set(line):
                del line[column]
        found[str(path.relative_to(folder))] = [json.dumps(line, sort_keys=True) for line in lines]
    return found


def signatures() -> dict[str, list[str]]:
    """The public names with their signatures."""
    out = []
    for name in sorted(anisoscope.__all__):
        value = getattr(anisoscope, name)
        try:
            out.append(f"{name}{inspect.signature(value)}")
        except (TypeError, ValueError):
            out.append(name)
    return {"signatures": out}


def make(name: str) -> dict[str, list[str]]:
    """The results of one case."""
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        torch.manual_seed(0)
        CASES[name](folder)
        return results(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What differs, one line per file and the first three lines of each."""
    out = []
    for path in sorted({*before, *after}):
        old, new = before.get(path, []), after.get(path, [])
        if old != new:
            out.append(f"{path}: {len(old)} lines before, {len(new)} after")
            pairs = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
            out += [f"  - {a[:300]}\n  + {b[:300]}" for a, b in pairs[:3]]
    return out


def main(command: str, target: str, *names: str) -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    folder = Path(target).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    different = 0
    for name in names or (*CASES, "signatures"):
        now = signatures() if name == "signatures" else make(name)
        path = folder / f"{name}.json"
        if command == "take":
            path.write_text(json.dumps(now))
            print(f"{name}: {sum(map(len, now.values()))} lines taken", flush=True)
            continue
        found = differences(json.loads(path.read_text()), now)
        different += bool(found)
        print(f"{name}: {'DIFFERENT' if found else 'equal'}", *found, sep="\n", flush=True)
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
