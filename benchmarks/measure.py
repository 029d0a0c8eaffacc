"""Compare measuring a model of GPT-2's size (124M) with its plain forward pass and with storing all its states."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.hooks import find_layout
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import Request
from anisoscope.measurement.site_statistics import EvaluationOptions
from benchmarks.harness import Figure, Outcome, Settings, clock, in_turn
from benchmarks.peers import OUTSIDE, Answer, exchanged, outside

TOKENS = 65_536  # the job whose cost is reported; cost is proportional to the tokens, so passes are timed on fewer
_WINDOW = 512
_BATCH = 4
_SAME = ["spectral_anisotropy", "two_nn"]  # what the other tools compute
Batch = dict[str, Tensor]
_STREAM = ("embed", "resid", "final")


def measure(settings: Settings) -> Outcome:
    """Measure statistics, evaluation and attention in forward passes, and speed and memory against stored states."""
    windows = 32 if settings.quick else TOKENS // _WINDOW
    model, batches = _model(), _batches(windows)
    stream, forward, engine = _alternate(model, batches, _STREAM)
    attention, plain, _ = _alternate(model, batches, (*_STREAM, "pattern"))
    start = clock()
    for _ in engine.results():
        pass
    evaluation = clock() - start
    whole = statistics.fmean(forward) * TOKENS / (_BATCH * _WINDOW)
    stored = in_turn({"ours": lambda: _ours(model, batches[:2]), "stored": lambda: _stored(model, batches[:2])}, 1)
    layers, slow = _microscope(model, batches[:2], settings)
    usual = None if slow.seconds is None else stored["stored"][0] + layers * slow.seconds
    memory = {job: _memory(job, windows) for job in ("stream", "stored")}
    memory["forward"] = _memory("forward", 2 * _BATCH)  # its memory does not grow with the tokens
    shorter = _memory("stream", windows // 2)
    return Outcome(
        [
            _total("statistics of the stream, in plain forward passes", stream, forward, 1.12),
            Figure(f"evaluation and error bars after {TOKENS:,} tokens, in passes", evaluation / whole, "×", 0.3),
            _total("with q, k and attention entropy of every head", attention, plain, 1.35),
            Figure("memory beyond the plain pass", (memory["stream"] - memory["forward"]) / 1e9, "GB", 0.6),
            Figure("memory with twice the tokens", memory["stream"] / shorter, "×", 1.1),
            Figure(
                f"storing {2 * _BATCH * _WINDOW:,} tokens' states, then SVD, scikit-dimension, llm-microscope, in ours",
                None if usual is None else usual / stored["ours"][0],
                "×",
                10,
                at_least=True,
                note=slow.reason or f"llm-microscope: {slow.seconds:.0f} s for one layer, × {layers}",
            ),
            Figure(
                f"memory of storing {windows * _WINDOW:,} tokens' states, in ours",
                _beyond(memory),
                "×",
                10,
                at_least=True,
            ),
        ]
    )


def _alternate(model: Any, batches: list[Batch], sites: tuple[str, ...]) -> tuple[list[float], list[float], Engine]:
    """Return the seconds of each batch with and without measuring, alternately, so that other load affects both."""
    plain: list[float] = []
    measured: list[float] = []
    start = 0.0

    def timed_batches() -> Iterator[Batch]:
        nonlocal start
        for batch in batches:
            before = clock()
            _forward(model, [batch])
            plain.append(clock() - before)
            start = clock()
            yield batch

    engine = _new_engine(model, batches, sites)
    engine.run(timed_batches(), on_progress=lambda _: measured.append(clock() - start))
    return measured, plain, engine


def _total(name: str, over: list[float], under: list[float], target: float) -> Figure:
    """Return the ratio of total times, so that the occasional cost of closing a block is included."""
    return Figure(name, sum(over) / sum(under), "×", target)


def _beyond(memory: dict[str, float]) -> float | None:
    more = memory["stored"] - memory["forward"]
    return more / max(memory["stream"] - memory["forward"], 1.0) if more > 0 else None


def _model() -> Any:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    return GPT2Model(GPT2Config()).eval()


def _batches(windows: int) -> list[Batch]:
    """Return token ids drawn by Zipf's law, so that words recur as in text."""
    make = torch.Generator().manual_seed(0)
    ids = (50_000 ** torch.rand(windows, _WINDOW, generator=make)).long()
    return [{"input_ids": part} for part in ids.split(_BATCH)]


def _forward(model: Any, batches: list[Batch]) -> None:
    with torch.inference_mode():
        for batch in batches:
            model(**batch)


def _new_engine(model: Any, batches: list[Batch], sites: tuple[str, ...], metrics: Any = None) -> Engine:
    layout = find_layout(model, {name: x[:1] for name, x in batches[0].items()})
    return Engine(model, layout, Request.of(sites=sites, metrics=metrics), expected=TOKENS)


def _run_engine(model: Any, batches: list[Batch], sites: tuple[str, ...], metrics: Any = None) -> Engine:
    engine = _new_engine(model, batches, sites, metrics)
    engine.run(batches)
    return engine


def _ours(model: Any, batches: list[Batch]) -> None:
    for _ in _run_engine(model, batches, ("resid",), _SAME).results(EvaluationOptions(errors=False)):
        pass


def _stored(model: Any, batches: list[Batch]) -> None:
    """Measure the usual way: all hidden states in memory, then one estimator after another on each layer."""
    import skdim

    for states in _states(model, batches):
        centred = states - states.mean(0)
        values = torch.linalg.svdvals(centred).square()
        float(values[0] / values.sum())
        skdim.id.TwoNN().fit(states.numpy())


def _microscope(model: Any, batches: list[Batch], settings: Settings) -> tuple[int, Answer]:
    """Return the number of layers, and llm-microscope's dimension of one layer: all layers would take an hour."""
    states = _states(model, batches)
    rows = states[len(states) // 2].numpy()
    (peer,) = (peer for peer in OUTSIDE if peer.slow)
    estimate = outside(settings, [peer])[peer.name]
    return len(states), estimate(rows, exchanged("layer", rows))


def _states(model: Any, batches: list[Batch]) -> list[Tensor]:
    with torch.inference_mode():
        outputs = [model(**batch, output_hidden_states=True).hidden_states for batch in batches]
    return [torch.cat([states[layer].flatten(0, 1) for states in outputs]) for layer in range(1, len(outputs[0]))]


_JOBS: dict[str, Callable[[Any, list[Batch]], object]] = {
    "forward": _forward,
    "stream": lambda model, batches: [len(done.measured) for done in _run_engine(model, batches, _STREAM).results()],
    "stored": _states,
}


def _memory(job: str, windows: int) -> float:
    """Return the peak memory in bytes of a job in a separate process."""
    command = [sys.executable, "-m", "benchmarks.measure", job, str(windows)]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _peak() -> float:
    """Return the highest resident memory since the last reset, in bytes (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) * 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, batches = _model(), _batches(int(sys.argv[2]))
    _forward(model, batches[:1])
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak after building the model
    kept = _JOBS[sys.argv[1]](model, batches)
    print(json.dumps(_peak()))
