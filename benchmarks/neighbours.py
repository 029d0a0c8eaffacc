"""Compare the exact nearest-neighbour search with the bare matrix products it needs, and with other tools.

    python benchmarks/neighbours.py [--quick] [--threads 1] [--exchange FOLDER --peer "faiss=PYTHON SCRIPT"]

All sides take turns in every round, and the result is the median of the ratios, so that other load affects both sides
equally. A tool whose pinned dependencies conflict with ours runs in its own environment. The cloud is written to
FOLDER/<cloud>.npy. Each round runs the command with that path and the number of neighbours as last arguments. The last
line it prints is the seconds of its search, without reading the file.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from anisoscope.stats.knn import nearest

RESULTS = Path(__file__).parent / "results" / "neighbours.json"
BLOCK = 2048


@dataclass(frozen=True)
class Row:
    """One figure of the benchmark, with its limit."""

    cloud: str
    n: int
    d: int
    k: int
    figure: str
    value: float
    limit: str | None
    reached: bool | None
    rounds: list[float]


def gaussian(n: int, d: int) -> Tensor:
    """Return independent entries: a flat spectrum, and neighbours that are hardly nearer than other rows."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def power_law(n: int, d: int) -> Tensor:
    """Return rows whose variances fall as 1/j, like those of many hidden states."""
    return gaussian(n, d) * torch.arange(1, d + 1).rsqrt()


def manifold(n: int, d: int) -> Tensor:
    """Return a manifold of ten dimensions, curved in 138 and embedded in d with a little noise."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(n, 10, generator=draw)  # (n, 10)
    angle = z @ torch.randn(10, 64, generator=draw) / math.sqrt(10)  # (n, 64)
    bent = torch.cat([angle.sin(), angle.cos(), z], dim=1)  # (n, 138)
    noise = 0.01 * torch.randn(n, d, generator=draw)
    return bent @ torch.randn(138, d, generator=draw) / math.sqrt(138) + noise


def sinks(n: int, d: int) -> Tensor:
    """Return a Gaussian cloud in which eight rows have 1000 times the norm."""
    x = gaussian(n, d)
    x[:: n // 8] *= 1000
    return x


CLOUDS: dict[str, Callable[[int, int], Tensor]] = {
    "gaussian": gaussian,
    "power law": power_law,
    "manifold": manifold,
    "sinks": sinks,
}
# cloud, d, k, largest allowed ratio to the product
SEARCHES = [
    ("gaussian", 768, 2, 1.6),
    ("manifold", 768, 2, 1.6),
    ("sinks", 768, 2, 1.6),
    ("gaussian", 768, 64, 3.0),
    ("manifold", 4096, 2, 0.6),
    ("gaussian", 4096, 2, 1.7),
    ("power law", 4096, 2, 1.7),
]
PEERS_CLOUD, PEERS_DIM, PEERS_FACTOR = "gaussian", 768, 2.5
MEMORY_LIMIT = 200.0  # MB


def seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def bare_product(x: Tensor) -> None:
    """Compute the float32 products of the upper triangle of blocks and nothing else."""
    out = torch.empty(BLOCK, BLOCK)
    for row in range(0, len(x), BLOCK):
        for column in range(row, len(x), BLOCK):
            torch.mm(x[row : row + BLOCK], x[column : column + BLOCK].T, out=out)


def against_product(cloud: str, n: int, d: int, k: int, limit: float | None, rounds: int) -> list[Row]:
    """Return the search time as a multiple of the product's, and the error of its distances against float64."""
    x = CLOUDS[cloud](n, d)
    nearest(x[:2048], k)
    ratios = []
    for _ in range(rounds):
        product = seconds(lambda: bare_product(x))
        ratios.append(seconds(lambda: nearest(x, k)) / product)
    ratio = _row(cloud, n, d, k, "time, in bare products", ratios, limit)
    error = _row(cloud, n, d, k, "largest relative error", [largest_error(x, k)], 1e-6)
    return [ratio, error]


def largest_error(x: Tensor, k: int) -> float:
    """Return the largest relative error against direct float64 differences, over a selection of rows."""
    measured = nearest(x, k).distance
    row = torch.cat([torch.arange(0, len(x), len(x) // 128), x.norm(dim=1).topk(16).indices])
    exact = torch.cdist(x[row].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    exact[torch.arange(len(row)), row] = torch.inf
    truth = exact.topk(k, dim=1, largest=False).values
    return float(((measured[row] - truth).abs() / truth).max())


def against_peers(
    n: int, rounds: int, exchange: Path | None, commands: dict[str, str], factor: float | None
) -> list[Row]:
    """Return the time of each tool as a multiple of ours; the fastest one decides."""
    x = CLOUDS[PEERS_CLOUD](n, PEERS_DIM)
    jobs: dict[str, Callable[[], float]] = {
        "sklearn brute force": lambda: seconds(lambda: sklearn_brute_force(x.numpy())),
        "scikit-dimension TwoNN": lambda: seconds(lambda: scikit_dimension(x.numpy())),
    }
    if exchange is not None:
        path = exchange / f"{PEERS_CLOUD}.npy"
        exchange.mkdir(parents=True, exist_ok=True)
        np.save(path, x.numpy())
        jobs |= {name: partial(outside, command, path) for name, command in commands.items()}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        ours = seconds(lambda: nearest(x, 2))
        for name, job in jobs.items():
            times[name].append(job() / ours)
    fastest = min(times, key=lambda name: statistics.median(times[name]))
    return [_peer_row(name, n, each, factor if name == fastest else None) for name, each in times.items()]


def _peer_row(name: str, n: int, times: list[float], factor: float | None) -> Row:
    value, figure = statistics.median(times), f"time of {name}, in our searches"
    if factor is None:
        return Row(PEERS_CLOUD, n, PEERS_DIM, 2, figure, value, None, None, times)
    return Row(PEERS_CLOUD, n, PEERS_DIM, 2, figure, value, f">= {factor:g}", value >= factor, times)


def sklearn_brute_force(x: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    NearestNeighbors(n_neighbors=2, algorithm="brute").fit(x).kneighbors()


def scikit_dimension(x: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    from skdim.id import TwoNN

    TwoNN().fit(x)


def outside(command: str, cloud: Path) -> float:
    """Run a tool of another environment on the cloud; the last line it prints is its seconds."""
    done = subprocess.run([*shlex.split(command), str(cloud), "2"], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def extra_memory(n: int, threads: int, limit: float | None) -> Row:
    """Return the peak resident memory above the input in a new process, including buffers of the libraries."""
    command = [sys.executable, __file__, "--memory-of", str(n), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return _row("gaussian", n, 768, 2, "extra memory, MB", [float(done.stdout) / 1024], limit)


def print_extra_memory(n: int) -> None:
    """Print the extra memory in kB, from the kernel's high-water mark, which is reset first (Linux only)."""
    x = gaussian(n, 768)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    nearest(x, 2)
    print(_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _row(cloud: str, n: int, d: int, k: int, figure: str, rounds: list[float], limit: float | None) -> Row:
    value = statistics.median(rounds)
    if limit is None:
        return Row(cloud, n, d, k, figure, value, None, None, rounds)
    return Row(cloud, n, d, k, figure, value, f"<= {limit:g}", value <= limit, rounds)


def run(*, quick: bool, threads: int, exchange: Path | None, commands: dict[str, str]) -> list[Row]:
    """Return all figures; `quick` uses small clouds, whose ratios say nothing about the limits."""
    n, rounds = (4096, 2) if quick else (16384, 5)
    torch.set_num_threads(threads)
    rows = []
    with import_module("threadpoolctl").threadpool_limits(threads):  # sklearn and numpy have their own pools
        for cloud, d, k, limit in SEARCHES:
            rows += _show(against_product(cloud, n, d, k, None if quick else limit, rounds if d < 1000 else 3))
        if Path("/proc/self/clear_refs").exists():
            rows += _show([extra_memory(n, threads, None if quick else MEMORY_LIMIT)])
        rows += _show(against_peers(n, min(rounds, 3), exchange, commands, None if quick else PEERS_FACTOR))
    return rows


def _show(rows: list[Row]) -> list[Row]:
    for row in rows:
        verdict = {None: "", True: f"{row.limit} reached", False: f"{row.limit} MISSED"}[row.reached]
        print(
            f"{row.cloud:10} {row.n:6} x {row.d:<5} k={row.k:<3} {row.figure:44} {row.value:9.3g}  {verdict}",
            flush=True,
        )
    return rows


def environment(threads: int) -> dict[str, object]:
    """Return what the figures depend on: machine, versions, load."""
    cpu = next((line for line in _cpu_lines() if line.startswith("model name")), platform.processor())
    packages = ("torch", "numpy", "scikit-learn", "scikit-dimension")
    return {
        "machine": {
            "system": platform.system(),
            "cpu": cpu.partition(":")[2].strip() or cpu,
            "cores": psutil.cpu_count(),
        },
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "threads": threads,
        "load": psutil.getloadavg()[0],
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small clouds, few rounds, no limits")
    parser.add_argument("--threads", type=int, default=1, help="threads; ratios vary least with one")
    parser.add_argument("--exchange", type=Path, help="folder for the clouds that other tools read")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another tool to run on them"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of is not None:
        torch.set_num_threads(options.threads)
        return print_extra_memory(options.memory_of)
    commands = dict(each.split("=", 1) for each in options.peer)
    if commands and options.exchange is None:
        parser.error("--peer needs --exchange FOLDER, from which the tool reads the cloud")
    rows = run(quick=options.quick, threads=options.threads, exchange=options.exchange, commands=commands)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report = {**environment(options.threads), "quick": options.quick, "rows": [asdict(row) for row in rows]}
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
