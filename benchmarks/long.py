"""Benchmark long runs: a million records in every view, each in a separate process, and ten thousand tracked steps."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from anisoscope import Tracker
from anisoscope.records import Record
from anisoscope.schedule import every
from anisoscope.store.run import Run
from benchmarks.harness import Figure, Outcome, Settings, clock

RECORDS = 1_000_000
STEPS = 10_000
LAYERS = HEADS = 12
_FLAT = (
    *("mean_cosine", "spectral_anisotropy", "isoscore", "effective_rank", "drift_norm", "two_nn"),
    *("mean_direction_drift", "subspace_angle", "cka"),
)
_HEADS = ("attention_entropy", "sink_mass", "q_drift", "k_drift", "qk_cosine")
_TANGENT = ("gradient_energy", "gradient_enrichment", "tangent_normal_ratio")
_INTERVAL = 20  # training steps between two probes
# What a user waits for, as code that runs in a separate process; times are CPU seconds, including imports.
_VIEWS = {
    "Run.frame": "Run.open(first).frame()",
    "anisoscope show": "cli('show', first)",
    "anisoscope report": "cli('report', first, '--out', first + '.html')",
    "anisoscope compare, two such runs": "cli('compare', first, second)",
    "the live page: first answer": "ask(first)",
    "the live page: an update of one look": "follow(first)",
}
_TARGETS = {"anisoscope report": 10.0}


def long(settings: Settings) -> Outcome:
    """Measure time and memory of every view of a long run, and whether a long training grows in memory or time."""
    count, steps = (20_000, 400) if settings.quick else (RECORDS, STEPS)
    folder = Path(tempfile.mkdtemp(prefix="anisoscope-long-"))
    try:
        for seed, name in enumerate(("first", "second")):
            long_run(folder / name, count, seed)
        figures = [figure for name, code in _VIEWS.items() for figure in _viewed(name, code, folder, count)]
        return Outcome([*figures, *_tracked(folder / "tracked", steps)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- a million records --------------------------------------------------------------------------------------------


def long_run(path: Path, count: int, seed: int = 0) -> Run:
    """Write a run of `count` records like a tracked training of twelve layers: about 1,140 records per probe."""
    chance = random.Random(seed)
    left, probe = count, 0
    with Run.create(path, {"kind": "training", "model": {"architecture": "Made"}}) as run:
        while left:
            records = list(look_of(probe * _INTERVAL, bars=probe % 10 == 0, chance=chance))[:left]
            run.append(records)
            left -= len(records)
            probe += 1
    return run


def look_of(step: int, *, bars: bool, chance: random.Random) -> Iterator[Record]:
    """Return the records of one probe: layers under both token policies, heads, gradients."""
    sites = ["embed", *(f"resid.{layer}" for layer in range(LAYERS)), "final"]
    error: dict[str, Any] = {"error": 0.01 * chance.random(), "error_kind": "jackknife-16-windows"} if bars else {}
    for site in sites:
        for tokens in ("all", "no-sink"):
            for metric in _FLAT:
                null = chance.random()
                yield Record(site, metric, chance.random(), step=step, tokens=tokens, null=null, n=4096, **error)
    for layer in range(LAYERS):
        for head in range(HEADS):
            for metric in _HEADS:
                yield Record(f"pattern.{layer}", metric, chance.random(), step=step, index=head, n=4096)
        variant = {"gradient": "hidden", "basis": "refreshed", "rows": "plain", "proxy": "pca"}
        for rank in (8, 32):
            for metric in _TANGENT:
                same: dict[str, Any] = {"step": step, "index": rank, "variant": variant, "null": rank / 768, "n": 2048}
                yield Record(f"grad.resid.{layer}", metric, chance.random(), **same)


_SCRIPT = """
    import contextlib, io, json, sys, time

    first, second = sys.argv[1:]
    began = time.process_time()

    from anisoscope.store.run import Run

    def cli(*arguments):
        from anisoscope.cli import main

        sys.argv = ["anisoscope", *arguments]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(SystemExit):
                main()

    def ask(path):
        from pathlib import Path
        from starlette.testclient import TestClient
        from anisoscope.report.live import live_app

        client = TestClient(live_app(str(Path(path).parent)), base_url="http://127.0.0.1:8733")
        assert client.get("/").status_code == 200
        assert client.get("/api/records", params={"run": Path(path).name}).status_code == 200

    def follow(path):
        global began
        from pathlib import Path
        from anisoscope.report.live import _grown_rows
        import random
        from benchmarks.long import look_of

        run = Run.open(path)
        position = (run.path / "records.jsonl").stat().st_size
        with Run.create(path, resume=True) as writer:
            writer.append(look_of(10**8, bars=True, chance=random.Random(1)))
        _grown_rows([run], [position], [0])  # imports at first use
        began = time.process_time()
        assert len(_grown_rows([run], [position], [0])["rows"]) > 1000

    CODE
    # not ru_maxrss, which starts at the memory of the parent process
    [peak] = [int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(json.dumps([time.process_time() - began, peak]))
"""


def _viewed(name: str, code: str, folder: Path, count: int) -> list[Figure]:
    """Return the CPU seconds and the peak memory of one view."""
    script = textwrap.dedent(_SCRIPT).replace("CODE", code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(folder / "first"), str(folder / "second")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    target = _TARGETS.get(name) if count == RECORDS else None
    return [
        Figure(f"{name}, {count:,} records", seconds, "s", target),
        Figure(f"{name}, {count:,} records: memory at most", peak, "MB", 1500.0 if count == RECORDS else None),
    ]


# --- ten thousand steps -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Resources of the process at one point of the training."""

    memory: float  # MB
    files: int
    objects: int
    seconds: float  # CPU time of the tracker so far


def _tracked(out: Path, steps: int) -> list[Figure]:
    """Track a tiny decoder every twentieth step, and compare resources after a fifth of the training with its end."""
    model, optimiser = _model()
    held: list[Held] = []
    probe = _batch(1, 8)
    marks = (steps // 5, 3 * steps // 5, steps)
    with Tracker(model, probe, out, schedule=every(_INTERVAL), bars_every=10) as tracker:
        spent = 0.0
        for step in range(steps):
            start = clock()
            tracker.probe(step)
            spent += clock() - start
            model(**_batch(100 + step, 4)).loss.backward()
            start = clock()
            tracker.watch(step)
            spent += clock() - start
            optimiser.step()
            optimiser.zero_grad()
            if step + 1 in marks:
                held.append(_held(spent))
    early, middle, late = held
    first, second = middle.seconds - early.seconds, late.seconds - middle.seconds
    return [
        Figure(f"memory gained from step {marks[0]:,} to {steps:,}", late.memory - early.memory, "MB", 8.0),
        Figure("open files gained", float(late.files - early.files), "", 0.5),
        Figure("Python objects gained", float(late.objects - early.objects), "", 1000.0),
        Figure("the tracker's time in the last two fifths, against the two before", second / first, "×", 1.1),
    ]


def _held(spent: float) -> Held:
    gc.collect()
    process = psutil.Process()
    return Held(process.memory_info().rss / 1e6, process.num_fds(), len(gc.get_objects()), spent)


def _model() -> tuple[Any, torch.optim.Optimizer]:
    import transformers

    torch.manual_seed(0)
    hf: Any = transformers
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    config = hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    model = hf.GPT2LMHeadModel(config).train()
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def _batch(seed: int, items: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 256, (items, 32), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}
