"""Benchmark sweeps: two workers against one, overhead per task, and memory of the driver as tasks grow."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.weight_files import weights_digest
from anisoscope.records import Record
from anisoscope.sweep import sweep as sweep_models
from anisoscope.sweep.engines import Engine, Outcome, Pull, in_pool, on_ray
from anisoscope.sweep.jobs import Answer, Compare, Job, Measure
from anisoscope.sweep.trajectory import KeptRows
from benchmarks.harness import Figure, Settings
from benchmarks.harness import Outcome as BenchmarkOutcome

CHECKPOINTS = 8
_JOBS = 40  # empty jobs, to measure the overhead of an engine


def sweep(settings: Settings) -> BenchmarkOutcome:
    """Measure the speed-up by workers, the overhead per task and the memory of the driver."""
    folder = Path(tempfile.mkdtemp(prefix="anisoscope-sweep-"))
    try:
        seconds = {workers: _swept(folder, workers, settings) for workers in (1, 2, 4)}
        name = f"two workers on a sweep of {CHECKPOINTS} checkpoints, against one on one core"
        tasks = 5 if settings.quick else 20
        (few, _), (many, own) = _driver(folder / "few", tasks), _driver(folder / "many", 10 * tasks)
        return BenchmarkOutcome(
            [
                Figure(name, seconds[1] / seconds[2], "×", 1.7, at_least=True),
                Figure("four workers, against one on one core", seconds[1] / seconds[4], "×"),
                Figure("the pool's overhead a task", _overhead(partial(in_pool, workers=1)), "s", 0.5),
                Figure("Ray's overhead a task, warm", _overhead(partial(on_ray, cpus=1)), "s", 2.0),
                Figure("the driver's own work a task, records and comparisons written", own, "s", 0.5),
                Figure("memory of the driver with ten times the tasks", many / few, "×", 1.2),
            ]
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swept(folder: Path, workers: int, settings: Settings) -> float:
    """Return the wall-clock seconds of a sweep; each worker uses one core, if there are enough."""
    train, text = _series(folder, settings.quick)
    request: dict[str, Any] = {"text": text, "tokens": 8192, "window": 128}
    if settings.quick:
        request |= {"tokens": 1024, "metrics": ["mean_cosine"]}
    engine = partial(in_pool, workers=workers, threads=1)
    start = time.perf_counter()
    swept = sweep_models(train, out=folder / f"run-{workers}", engine=engine, **request)
    seconds = time.perf_counter() - start
    assert swept.measured == CHECKPOINTS, swept.failed
    return seconds


def _series(folder: Path, quick: bool) -> tuple[Path, Path]:
    """Return checkpoints of a small model whose weights follow a random walk, and a text; created once."""
    train, text = folder / "train", folder / "text.txt"
    if train.is_dir():
        return train, text
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    width, layers = (32, 2) if quick else (256, 4)
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2Model(GPT2Config(n_embd=width, n_layer=layers, n_head=4, vocab_size=512, n_positions=128, **ends))
    first = train / "checkpoint-0"
    model.save_pretrained(first)
    _tokenizer().save_pretrained(first)
    weights = load_file(first / "model.safetensors")
    for step in range(1, CHECKPOINTS):
        weights = {name: x + 0.01 * torch.randn_like(x) for name, x in weights.items()}
        shutil.copytree(first, train / f"checkpoint-{step}")
        save_file(weights, train / f"checkpoint-{step}" / "model.safetensors", {"format": "pt"})
    chance = random.Random(0)
    text.write_text(" ".join(f"w{int(400 ** chance.random())}" for _ in range(40_000)))
    return train, text


def _tokenizer() -> Any:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    made: Any = tokenizers
    words = {f"w{number}": number + 1 for number in range(400)} | {"?": 0}
    tokenizer = made.Tokenizer(made.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = made.pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", pad_token="?")


def _overhead(engine: Engine) -> float:
    """Return the seconds between answers of empty jobs; the first ones start the workers and do not count."""
    left = [Compare(step, (), (), None) for step in range(_JOBS)]
    came = [time.perf_counter() for _ in engine(lambda: left.pop() if left else None)]
    warm = came[_JOBS // 4 :]
    return (warm[-1] - warm[0]) / (len(warm) - 1)


def _driver(folder: Path, tasks: int) -> tuple[float, float]:
    """Return the peak bytes of the driver's objects, and its seconds per task, in a sweep with artificial answers."""
    for step in range(tasks):
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        save_file({"x": torch.full((4,), float(step))}, checkpoint / "model.safetensors")
    text = folder / "text.txt"
    text.write_text("none of it is read")
    start = time.perf_counter()
    sweep_models(folder, out=folder.with_name(f"timed-{tasks}"), engine=_artificial, text=text)
    seconds = (time.perf_counter() - start) / tasks
    tracemalloc.start()
    try:
        sweep_models(folder, out=folder.with_name(f"traced-{tasks}"), engine=_artificial, text=text)
        return float(tracemalloc.get_traced_memory()[1]), seconds
    finally:
        tracemalloc.stop()


def _artificial(pull: Pull) -> Iterator[Outcome]:
    while (job := pull()) is not None:
        yield Outcome(job, _answer(job))


def _answer(job: Job) -> Answer:
    """Return an answer as large as that of a small model: 400 records, and 1024 rows of 128 numbers at 8 sites."""
    measured = [MetricResult(Record(f"resid.{number}", "mean_cosine", 0.5)) for number in range(400)]
    if not isinstance(job, Measure):
        return Answer(measured[:20])
    rows = {"Sample/x": np.zeros((1024, 128), np.float32)}
    kept = tuple(KeptRows(f"resid.{layer}", "no-sink", rows) for layer in range(8))
    digest = weights_digest(Path(job.task.checkpoint.source))
    return Answer(measured, kept, {"model": {"digest": digest, "commit": None}}, [float(job.task.checkpoint.step)])
