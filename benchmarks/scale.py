"""The cost of measuring by tokens, layers and width; a cost model fitted to it; and its prediction for a large job.

python -m benchmarks scale          measures the points
python -m benchmarks.scale          writes the measured part of docs/scale.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisoscope.hooks import find_layout
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import Request
from benchmarks.harness import RESULTS, ROOT, Figure, Outcome, Settings, load

PAGE = ROOT / "docs" / "scale.md"
_BEGIN, _END = "<!-- measured: python -m benchmarks.scale -->", "<!-- end of measured -->"
_POINTS = "scale-points.json"
_SAMPLE = 2048
_WINDOW = 128


@dataclass(frozen=True)
class Point:
    """One measured model; all times are seconds of one core."""

    width: int
    layers: int
    tokens: int
    forward: float  # per token
    statistics: float  # per token and site, in addition to the forward pass
    evaluation: float  # per site: both token policies, with error bars


@dataclass(frozen=True)
class Fit:
    """The cost model: a + b·d + c·d² per token and site, and e + f·d + g·d³ per site, in seconds of one core."""

    statistics: tuple[float, float, float]
    evaluation: tuple[float, float, float]
    worst: float  # the largest relative error over the points
    product: float  # float32 operations per second of one core

    def of_token(self, d: float) -> float:
        a, b, c = self.statistics
        return a + b * d + c * d * d

    def of_site(self, d: float) -> float:
        e, f, g = self.evaluation
        return e + f * d + g * d**3

    @property
    def products(self) -> float:
        """Cost of a site's statistics at large d, in full d × d products per token (2·d² operations each)."""
        return self.statistics[2] * self.product / 2


@dataclass(frozen=True)
class Hardware:
    """What is assumed about machines that were not available; everything else is measured."""

    gpus: int = 64
    forward: float = 400e12  # operations per second and GPU of a bfloat16 forward pass
    float32: float = 50e12  # the same for float32 products, which the statistics use
    memory: float = 80e9  # bytes per GPU
    cores: int = 8  # host cores per GPU
    link: float = 1e9  # bytes per second and process for transferring statistics, packing included


@dataclass(frozen=True)
class Job:
    """A model measured over a text: by default 70 billion parameters over a billion tokens."""

    parameters: float = 70e9
    width: int = 8192
    layers: int = 80
    tokens: float = 1e9
    blocks: int = 64  # blocks of documents whose statistics are transferred

    @property
    def sites(self) -> int:
        return self.layers + 2


def scale(settings: Settings) -> Outcome:
    """Measure the points of the cost model, and how well it fits them."""
    widths = (64, 128) if settings.quick else (128, 256, 512, 1024)
    tokens = 2048 if settings.quick else 16_384
    points = [_point(width, 2, tokens) for width in widths]
    points += [_point(widths[1], 4, tokens), _point(widths[1], 2, 2 * tokens)]
    settings.results.mkdir(parents=True, exist_ok=True)
    found = fit(points, product_speed())
    stored = {"points": [asdict(point) for point in points], "product": found.product}
    (settings.results / _POINTS).write_text(json.dumps(stored, indent=1))
    base, deeper, longer = points[1], points[-2], points[-1]
    return Outcome(
        [
            Figure("the cost model's largest error over the points", found.worst, "", 0.25),
            Figure("statistics a token and site with twice the layers", deeper.statistics / base.statistics, "×"),
            Figure("statistics a token and site with twice the tokens", longer.statistics / base.statistics, "×"),
            Figure("statistics of a wide site, in d × d products a token", found.products, "×"),
        ]
    )


def fit(points: Sequence[Point], product: float) -> Fit:
    """Fit the cost model to points: least relative squares, no negative terms."""
    d = np.array([point.width for point in points], float)
    statistics, near = _least(d, (0, 1, 2), np.array([point.statistics for point in points]))
    evaluation, far = _least(d, (0, 1, 3), np.array([point.evaluation for point in points]))
    return Fit(statistics, evaluation, max(near, far), product)


def predict(found: Fit, job: Job, machine: Hardware) -> dict[str, tuple[float, str]]:
    """Predict the cost of a job: for each part its amount and unit."""
    d, sites = job.width, job.sites
    share = job.tokens / machine.gpus
    matrices = 2 * d * d * 8  # bytes per site: second moments of first tokens and of the others, in float64
    operations = found.products * 2 * d * d
    hour = 3600.0
    return {
        "forward passes": (2 * job.parameters * share / machine.forward / hour, "hours"),
        "statistics": (share * sites * operations / machine.float32 / hour, "hours"),
        "adding over processes": (sites * job.blocks * matrices / machine.gpus / machine.link / hour, "hours"),
        "evaluation": (sites * found.of_site(d) / machine.gpus / machine.cores / hour, "hours"),
        "statistics in the memory of GPUs, all sites": (sites * matrices / 1e9, "GB"),
        "weights in bfloat16": (2 * job.parameters / 1e9, "GB"),
        "reading the text, at a million tokens per second": (job.tokens / 1e6 / hour, "hours"),
    }


def product_speed() -> float:
    """Operations per second of one core in float32 products of 1024 rows."""
    x = torch.randn(1024, 1024)
    seconds = min(_seconds(lambda: x @ x) for _ in range(5))
    return 2 * 1024**3 / seconds


def page() -> str:
    """Return docs/scale.md with its measured part rebuilt from the results."""
    stored = json.loads((RESULTS / _POINTS).read_text())
    points = [Point(**point) for point in stored["points"]]
    found = fit(points, stored["product"])
    before, rest = PAGE.read_text().split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n\n{_measured(points, found)}\n{_END}{after}"


def _measured(points: Sequence[Point], found: Fit) -> str:
    lines = [
        "| d | layers | tokens | forward, µs per token | statistics, µs per token and site | evaluation, s per site |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {p.width} | {p.layers} | {p.tokens} | {p.forward * 1e6:.3g} | {p.statistics * 1e6:.3g} "
        f"| {p.evaluation:.3g} |"
        for p in points
    ]
    (a, b, c), (e, f, g) = found.statistics, found.evaluation
    lines += [
        "",
        f"Fit, in seconds of one core: statistics per token and site = {a:.2g} + {b:.2g}·d + {c:.2g}·d², evaluation "
        f"per site = {e:.2g} + {f:.2g}·d + {g:.2g}·d³.",
        f"The largest error over these points is {found.worst:.0%}. One core computes float32 products at "
        f"{found.product:.2g} operations per second, so at large d a site costs {found.products:.2g} full d × d "
        "products per token.",
        "",
        *_workers(),
        "Prediction for 70 billion parameters (d = 8192, 80 layers) over a billion tokens on 64 GPUs:",
        "",
        "| part | amount |",
        "|---|--:|",
    ]
    predicted = predict(found, Job(), Hardware())
    lines += [f"| {name} | {amount:.3g} {unit} |" for name, (amount, unit) in predicted.items()]
    return "\n".join(lines) + "\n"


def _workers() -> list[str]:
    """Return the table of what `python -m benchmarks sweep` measured, if it was run."""
    outcome = load(RESULTS).get("sweep")
    if outcome is None:
        return []
    rows = [
        # names are keys of stored results, so they are only reworded for display
        f"| {figure.name.replace(' a task', ' per task')} | {figure.value:.3g} {figure.unit} |"
        for figure in outcome.figures
        if figure.value
    ]
    return ["Workers on one machine:", "", "| figure | measured |", "|---|--:|", *rows, ""]


def _point(width: int, layers: int, tokens: int) -> Point:
    """Measure the CPU time of this process on a model of this shape."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    shape = {"n_embd": width, "n_layer": layers, "n_head": max(1, width // 64), "n_positions": _WINDOW}
    model = GPT2Model(GPT2Config(**shape, vocab_size=512, bos_token_id=0, eos_token_id=0)).eval()  # type: ignore[arg-type]
    ids = torch.randint(0, 512, (tokens // _WINDOW, _WINDOW), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": part} for part in ids.split(4)]
    layout = find_layout(model, {"input_ids": ids[:1]})

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch)

    def measured() -> Engine:
        engine = Engine(model, layout, Request.of(sites=["resid"], sample=_SAMPLE), expected=tokens)
        engine.run(batches)
        return engine

    forward()
    plain = min(_seconds(forward) for _ in range(3))
    with_statistics = min(_seconds(measured) for _ in range(3))
    engine = measured()
    evaluation = _seconds(lambda: list(engine.results())) / layers
    return Point(width, layers, tokens, plain / tokens, max(with_statistics - plain, 0.0) / tokens / layers, evaluation)


def _least(d: Any, powers: tuple[int, ...], y: Any) -> tuple[tuple[float, float, float], float]:
    """Return the coefficients of these powers of d that fit y best, and the largest relative error."""
    from scipy.optimize import nnls

    terms = np.stack([d**power for power in powers], 1)  # (n, 3)
    size = terms.max(0)
    found, _ = nnls(terms / size / y[:, None], np.ones(len(y)))
    coefficients = found / size
    worst = float(np.abs(terms @ coefficients / y - 1).max())
    return (float(coefficients[0]), float(coefficients[1]), float(coefficients[2])), worst


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def write(path: Path = PAGE) -> None:
    path.write_text(page())


if __name__ == "__main__":
    write()
