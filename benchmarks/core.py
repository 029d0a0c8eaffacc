"""Compare the statistics with their limits: one matrix product, one read of the data, constant memory."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path

import torch
from torch import Tensor

from anisoscope import Geometry, measure_rows, metrics, open_vectors
from anisoscope.data.vectors import write_npy
from anisoscope.errors import InputError
from anisoscope.measurement.row_engine import RowEngine, RowOptions
from anisoscope.stats.collect import batches_of, cloud_of
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows
from benchmarks.harness import Figure, Outcome, Settings, clock, in_turn, ratio

DIM = 768
_SUMS = ["mean_cosine", "spectral_anisotropy", "isoscore", "participation_ratio"]  # metrics without neighbours
_CHUNK = 16384  # rows written to a file at once


def spectrum(settings: Settings) -> Outcome:
    """Compare the eigenvalues of 65,536 rows with one full product and one eigenvalue problem; measure their error."""
    x = _rows(8192 if settings.quick else 65536)
    whole = _moments(x)
    times = in_turn(
        {
            "product": lambda: x.T @ x,
            "product and eigenvalues": lambda: torch.linalg.eigvalsh((x.T @ x).double()),
            "moments": lambda: _moments(x).eigenvalues,
            "cloud": lambda: cloud_of(x, ["Moments"]).get(Moments).eigenvalues,
            "scores": lambda: (metrics.isoscore.of(whole), metrics.participation_ratio.of(whole)),
        },
        settings.rounds,
    )
    size = f"{len(x):,} × {DIM}"
    figures = [
        ratio(f"spectrum of {size}, in one product and eigvalsh", times, "moments", "product and eigenvalues", 1.2),
        ratio("the same in blocks, extremes kept", times, "cloud", "product and eigenvalues"),
        ratio("IsoScore and participation ratio, in one product", times, "scores", "product", 0.01),
    ]
    return Outcome(figures + _accuracy(2048 if settings.quick else 16384))


def cosine(settings: Settings) -> Outcome:
    """Compare the mean cosine over all pairs with one read of the rows, and with all pairs in float64."""
    x = _rows(32768 if settings.quick else 65536)  # fewer would stay in the cache between two reads
    batches = list(batches_of(x))  # views of the rows
    times = in_turn({"read": x.sum, "cosine": lambda: _mean_cosine(batches)}, 3 * settings.rounds)
    return Outcome(
        [
            ratio(f"mean cosine of {len(x):,} × {DIM}, in reads of the rows", times, "cosine", "read", 3.0),
            Figure("mean cosine, error against all pairs", _cosine_error(x[:4096]), "", 1e-6),
        ]
    )


def geometry(settings: Settings) -> Outcome:
    """Compare `Geometry.update`, and one metric of an array, with one full product of the same rows."""
    x = _rows(4096 if settings.quick else 16384)
    batches = x.split(1024)
    streamed, options = Geometry(_SUMS, expected=len(x)), RowOptions(metrics.find(_SUMS), expected=len(x))
    times = in_turn(
        {
            "product": lambda: x.T @ x,
            "update": lambda: _updated(streamed, batches),
            "all statistics": lambda: _collected(batches, options).whole(),
            "isoscore": lambda: metrics.isoscore(x),
        },
        settings.rounds,
    )
    size = f"{len(x):,} × {DIM}"
    return Outcome(
        [
            ratio(f"Geometry.update of {size} in batches of 1,024, in products", times, "update", "product", 1.3),
            ratio("the same, and the rows that wait for a full piece", times, "all statistics", "product"),
            ratio(f"metrics.isoscore of {size}, in products", times, "isoscore", "product", 1.5),
        ]
    )


def _updated(streamed: Geometry, batches: Iterable[Tensor]) -> None:
    streamed.reset()
    for batch in batches:
        streamed.update(batch)


def _collected(batches: Iterable[Tensor], options: RowOptions) -> RowEngine:
    engine = RowEngine(options)
    for batch in batches:
        engine.add(batch, None)
    return engine


def stream(settings: Settings) -> Outcome:
    """Measure time and memory of all streaming metrics of a file of a million rows, each size in a separate process."""
    largest = 100_000 if settings.quick else 1_000_000
    sizes = (largest // 4, largest // 2, largest)
    with tempfile.TemporaryDirectory() as folder:
        _require_space(folder, 4 * DIM * sum(sizes))
        files = {n: Path(folder) / f"{n}.npy" for n in sizes}
        for n, path in files.items():
            _write(path, n)
        runs: dict[int, list[tuple[float, float]]] = {n: [] for n in sizes}
        for _ in range(1 if settings.quick else 3):
            for n, path in files.items():
                runs[n].append(_measure_in_process(path, settings, errors=False))
        barred = _measure_in_process(files[largest], settings, errors=True)
    return Outcome(_stream_figures(runs, barred))


def _stream_figures(runs: dict[int, list[tuple[float, float]]], barred: tuple[float, float]) -> list[Figure]:
    took = {n: statistics.median(time for time, _ in each) for n, each in runs.items()}
    sizes = sorted(took)
    per_row = [1e6 * took[n] / n for n in sizes]
    further = [1e6 * (took[m] - took[n]) / (m - n) for n, m in pairwise(sizes)]
    many = f"{sizes[-1]:,} rows"
    memory = [peak for each in runs.values() for _, peak in each]
    span = f"from {sizes[0]:,} to {many}"
    return [
        Figure(f"time a row {span}: most by least, in µs", max(per_row) / min(per_row), "×", 1.25, rounds=per_row),
        Figure("time a further row: most by least, in µs", max(further) / min(further), "×", rounds=further),
        Figure(f"time, {many}", took[sizes[-1]], "s"),
        Figure(f"time, {many}, with error bars", barred[0], "s"),
        Figure(f"peak anonymous memory, {many}", max(memory), "MB", 1500, rounds=memory),
        Figure(f"peak anonymous memory, {many}, with error bars", barred[1], "MB", 1500),
    ]


def streaming_metrics() -> list[str]:
    """List the metrics of plain rows that need no sample."""
    known = {"Moments", "Directions", "Norms", "Extremes", "CentredDirections", "Partition"}
    return [name for name, metric in metrics.catalogue().items() if not metric.requires and metric.sources <= known]


def _rows(n: int) -> Tensor:
    """Return rows with falling variances about a mean, like hidden states, (n, DIM) float32."""
    draw = torch.Generator().manual_seed(0)
    scale = torch.arange(1, DIM + 1).pow(-0.5)  # (d,)
    rows: Tensor = torch.randn(n, DIM, generator=draw) * scale + scale.flip(0)  # (n, d)
    return rows


def _moments(x: Tensor, *, precise: bool = False) -> Moments:
    return reduce(add, (Moments.of(rows, precise=precise) for rows in batches_of(x)))


def _mean_cosine(batches: Iterable[Rows]) -> float:
    return float(metrics.mean_cosine.of(reduce(add, map(Directions.of, batches))).value or 0.0)


def _cosine_error(x: Tensor) -> float:
    unit = torch.nn.functional.normalize(x.double())  # (n, d)
    n = len(x)
    pairs = float((unit @ unit.T).sum() - n) / (n * (n - 1))
    return abs(_mean_cosine(batches_of(x)) - pairs)


def _accuracy(n: int) -> list[Figure]:
    """Return the largest relative error of σ/σ1 above a floor, against float64 singular values of the same rows."""
    cases = [(0.0, False, 1e-3), (10.0, False, 1e-3), (95.0, False, 1e-3)]  # float64 takes over at 100
    cases += [(300.0, False, 1e-6), (0.0, True, 1e-6), (100.0, True, 1e-6)]
    figures = []
    for mean, precise, floor in cases:
        x = _steep_rows(n, mean)
        truth = torch.linalg.svdvals(x.double() - x.double().mean(0))
        measured = _moments(x, precise=precise).eigenvalues.sqrt()
        truth, measured = truth / truth[0], measured / measured[0]
        above = truth >= floor
        error = float(((measured - truth).abs() / truth)[above].max())
        how = "precise=True" if precise else "as chosen"
        name = f"error of σ/σ1 down to {floor:g}, mean {mean:g} × spread, {how}"
        figures.append(Figure(name, error, "", 0.01, note=f"{int(above.sum())} values"))
    return figures


def _steep_rows(n: int, mean: float) -> Tensor:
    """Return float32 rows whose singular values fall from 1 to 1e-8; `mean` is in units of their spread."""
    draw = torch.Generator().manual_seed(0)
    frame = torch.linalg.qr(torch.randn(DIM, DIM, generator=draw, dtype=torch.float64)).Q
    fall = torch.logspace(0, -8, DIM, dtype=torch.float64)  # (d,)
    y = torch.randn(n, DIM, generator=draw, dtype=torch.float64) * fall @ frame  # (n, d)
    spread = y.square().sum(1).mean().sqrt()
    direction = torch.randn(DIM, generator=draw, dtype=torch.float64)
    rows: Tensor = y + mean * spread * direction / direction.norm()
    return rows.float()


def _write(path: Path, n: int) -> None:
    """Write a file of n rows in chunks."""
    x = _rows(_CHUNK)
    with write_npy(path, n, DIM) as write:
        for first in range(0, n, _CHUNK):
            write((x * (1 + first / n))[: n - first])


def _require_space(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 1.5 * needed:
        raise InputError(
            f"{folder} has {free / 1e9:.0f} GB free, the files need {needed / 1e9:.0f} GB. Free some space."
        )


def _measure_in_process(path: Path, settings: Settings, *, errors: bool) -> tuple[float, float]:
    """Return the seconds and the peak anonymous memory in MB of measuring a file in a new process."""
    command = [sys.executable, "-m", "benchmarks.core", str(path), str(settings.threads), str(int(errors))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = _watch(process)
        output = process.communicate()[0]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return float(output), peak


def _watch(process: subprocess.Popen[str]) -> float:
    """Return the largest anonymous memory of a process in MB, sampled every 20 ms until it ends.

    Pages of a mapped file do not count: the kernel reclaims them when it needs memory.
    """
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, _anonymous(process.pid))
        time.sleep(0.02)
    return peak


def _anonymous(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:  # no such kernel interface, or the process has just ended
        return 0.0
    return sum(1.024e-3 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _measure_file(path: str, threads: int, errors: bool) -> None:
    """Measure a file and print the seconds it took; runs in the separate process."""
    torch.set_num_threads(threads)
    start = clock()
    measure_rows(open_vectors(path), streaming_metrics(), errors=errors)
    print(clock() - start)


if __name__ == "__main__":
    _measure_file(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
