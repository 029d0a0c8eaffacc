"""Run other tools on the same rows and compare their times and answers.

scikit-dimension and IsoScore share our environment. A tool whose pinned dependencies conflict with ours has its own
environment under .bench/, created when it is first needed, and reads .npy files. If a tool cannot be installed or run,
the reason is listed.
"""

from __future__ import annotations

import math
import os
import resource
import shlex
import statistics
import subprocess
import venv
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from anisoscope import measure_rows, metrics
from benchmarks.harness import SCRATCH, Figure, Outcome, Settings, clock, in_turn, ratio

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Peer:
    """A tool in its own environment: what pip installs there, step by step, and the script that runs it."""

    name: str
    installs: tuple[tuple[str, ...], ...]
    script: str
    slow: bool = False  # a large cloud would take hours
    settings: tuple[str, ...] = ()  # environment variables of its process

    @property
    def folder(self) -> Path:
        return SCRATCH / Path(self.script).stem.removeprefix("peer_")

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


OUTSIDE = (
    Peer("DADApy", (("dadapy==0.3.4",),), "peer_dadapy.py"),
    Peer("faiss flat", (("faiss-cpu==1.15.1", "numpy>=2"),), "peer_faiss.py"),
    # torch first and pinned: an unpinned version would pull gigabytes of GPU packages
    Peer(
        "llm-microscope",
        (("torch==2.13.0", "numpy>=2"), ("llm-microscope==0.0.7",)),
        "peer_llm_microscope.py",
        slow=True,
        # It frees the differences of every row to all others at once. By default they stay in the allocator's heap:
        # 9 GB for 1,000 rows of width 768 instead of 0.3, and 1.5 times the time.
        settings=("MALLOC_MMAP_THRESHOLD_=262144",),
    ),
)


@dataclass(frozen=True)
class Answer:
    """A dimension and the seconds it took, or the reason why it is missing."""

    value: float | None
    seconds: float | None
    reason: str | None = None


Estimator = Callable[[Array, Path], Answer]  # the rows, and the file that contains them


def peers(settings: Settings) -> Outcome:
    """Compare times of TwoNN on many rows, its answers on clouds of known dimension, and times of IsoScore."""
    n, few, small = (2048, 256, 500) if settings.quick else (16384, 1000, 2000)
    fast = _inside() | outside(settings, [peer for peer in OUTSIDE if not peer.slow])
    slow = outside(settings, [peer for peer in OUTSIDE if peer.slow])
    rounds = 1 if settings.quick else 3
    target = None if settings.quick else FASTER
    figures = _times(n, {name: fast[name] for name in fast if name != GRIDE}, rounds, target)
    figures += _times(few, {OURS: fast[OURS], **slow}, 1)
    figures += _isoscore(n, settings)
    return Outcome(figures, _answers(small, fast | slow))


def search_commands(settings: Settings) -> dict[str, str]:
    """Return the commands of the tools that can search many rows, for the benchmark of the search."""
    commands = {}
    for peer in OUTSIDE:
        reason = None if peer.slow else installed(peer)
        if reason:
            print(f"{peer.name} is left out of the search: {reason}")
        elif not peer.slow:
            commands[peer.name] = shlex.join(command_of(peer, settings.threads))
    return commands


def flat(n: int, k: int, d: int, *, offset: float = 0.0) -> Array:
    """Return a k-dimensional Gaussian, rotated into d dimensions."""
    draw = np.random.default_rng(0)
    frame = np.linalg.qr(draw.standard_normal((d, d)))[0][:k]  # (k, d)
    turned: Array = draw.standard_normal((n, k)) @ frame + offset
    return turned


def sphere(n: int, d: int) -> Array:
    """Return points on the unit sphere in d dimensions, which has d − 1 dimensions."""
    x = np.random.default_rng(0).standard_normal((n, d))
    surface: Array = x / np.linalg.norm(x, axis=1, keepdims=True)
    return surface


def with_copies(x: Array) -> Array:
    """Return the rows with every tenth row replaced by a copy of the previous one."""
    copied = x.copy()
    copied[9::10] = x[8::10][: len(x[9::10])]
    return copied


# true dimension, and a function that makes n rows
KNOWN: dict[str, tuple[int, Callable[[int], Array]]] = {
    "Gaussian in 20-D": (5, lambda n: flat(n, 5, 20)),
    "sphere S⁹": (9, lambda n: sphere(n, 10)),
    "Gaussian": (64, lambda n: flat(n, 64, 64)),
    "5-D, 10 % copies": (5, lambda n: with_copies(flat(n, 5, 20))),
    "5-D in 64-D, float32, offset 1000": (5, lambda n: flat(n, 5, 64, offset=1000.0).astype(np.float32)),
}
OURS, GRIDE = "anisoscope", "skdim GRIDE"
FAST_PEERS, FASTER = ("faiss flat", "skdim TwoNN"), 3.0  # `measure_rows` on all rows is at least three times as fast


def _times(n: int, estimators: dict[str, Estimator], rounds: int, target: float | None = None) -> list[Figure]:
    """Return the time of each estimator on n rows of 10 dimensions in 768, as a multiple of ours."""
    x = flat(n, 10, 768).astype(np.float32)
    path = exchanged(f"flat-{n}", x)
    answers: dict[str, list[Answer]] = {name: [] for name in estimators}
    for _ in range(rounds):
        for name, estimate in estimators.items():
            answers[name].append(estimate(x, path))
    ours = [answer.seconds or 0.0 for answer in answers[OURS]]
    return [
        _time(f"TwoNN of {n:,} × 768, {name}", each, ours, target if name in FAST_PEERS else None)
        for name, each in answers.items()
    ]


def _time(name: str, answers: list[Answer], ours: list[float], target: float | None) -> Figure:
    reason = next((answer.reason for answer in answers if answer.reason), None)
    if reason:
        return Figure(name, None, "×", note=reason)
    took = [answer.seconds or 0.0 for answer in answers]
    each = [a / b for a, b in zip(took, ours, strict=True)]
    note = f"{statistics.median(took):.2f} s, answers {answers[0].value:.2f} where 10 is true"
    return Figure(name, statistics.median(each), "× ours", target, at_least=True, rounds=each, note=note)


def _answers(n: int, estimators: dict[str, Estimator]) -> dict[str, dict[str, str]]:
    """Return the answers of each estimator on clouds of known dimension."""
    table = {}
    for name, (true, make) in KNOWN.items():
        x = make(n)
        path = exchanged(f"{list(KNOWN).index(name)}-{n}", x)
        answers = {which: estimate(x, path) for which, estimate in estimators.items()}
        table[f"{name} ({true})"] = {which: _cell(answer) for which, answer in answers.items()}
    return table


def _cell(answer: Answer) -> str:
    return f"{answer.value:.2f}" if answer.value is not None else f"none: {answer.reason}"


def _isoscore(n: int, settings: Settings) -> list[Figure]:
    """Compare IsoScore with the package of its authors: time as a multiple of ours, and difference of the scores."""
    x = torch.from_numpy(flat(n, 768, 768).astype(np.float32))  # (n, d)
    package = import_module("IsoScore.IsoScore").IsoScore
    times = in_turn({"package": lambda: package(x), "ours": lambda: metrics.isoscore(x)}, settings.rounds)
    theirs, ours = float(package(x.double())), metrics.isoscore(x)
    difference = Figure("IsoScore, distance from the package's in float64", abs(theirs - ours), "", 1e-6)
    return [ratio(f"IsoScore of {n:,} × 768, the package, in ours", times, "package", "ours"), difference]


def _inside() -> dict[str, Estimator]:
    """Return the estimators in our own environment."""
    known = import_module("skdim.id")
    return {
        OURS: partial(_called, _two_nn),
        "skdim TwoNN": partial(_called, lambda x: float(known.TwoNN().fit(x).dimension_)),
        GRIDE: partial(_called, lambda x: float(known.GRIDE().fit(x).dimension_)),
    }


def _two_nn(x: Array) -> float:
    (record,) = measure_rows(x, ["two_nn"], sample=len(x), errors=False)
    assert record.value is not None
    return record.value


def _called(function: Callable[[Array], float], x: Array, path: Path) -> Answer:
    start = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = function(x)
    return Answer(value, clock() - start)


def outside(settings: Settings, chosen: list[Peer]) -> dict[str, Estimator]:
    """Return the tools of other environments, after installing those that are missing."""
    estimators: dict[str, Estimator] = {}
    for peer in chosen:
        reason = installed(peer)
        run = partial(_run, command_of(peer, settings.threads))
        estimators[peer.name] = partial(_refused, reason) if reason else run
    return estimators


def _refused(reason: str, x: Array, path: Path) -> Answer:
    return Answer(None, None, reason)


def _run(command: list[str], x: Array, path: Path) -> Answer:
    """Run a tool on a file; it prints the dimension, its CPU time and its wall-clock time in seconds."""
    done = subprocess.run(
        [*command, str(path), "2"], capture_output=True, text=True, check=False, preexec_fn=_limit_memory
    )
    if done.returncode:
        return Answer(None, None, last_line(done.stderr))
    value, work, wall = map(float, done.stdout.split()[-3:])
    took = work if torch.get_num_threads() == 1 else wall  # as `clock` does for jobs in this process
    return Answer(value, took) if math.isfinite(value) else Answer(None, took, str(value))


def _limit_memory() -> None:
    """Limit a tool to half of the machine's memory."""
    half = psutil.virtual_memory().total // 2
    resource.setrlimit(resource.RLIMIT_AS, (half, half))


def command_of(peer: Peer, threads: int) -> list[str]:
    """Return the command that runs the tool's script in its environment with this many threads."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    settings = (*(f"{pool}={threads}" for pool in pools), *peer.settings)
    return ["env", *settings, str(peer.python), str(Path(__file__).parent / peer.script)]


def installed(peer: Peer) -> str | None:
    """Create the environment of a tool if it is missing; return the reason if that fails."""
    ready = peer.folder / "installed"
    wanted = repr(peer.installs)
    if ready.exists() and ready.read_text() == wanted:
        return None
    print(f"creating the environment of {peer.name} in {peer.folder.relative_to(SCRATCH.parent)}", flush=True)
    venv.create(peer.folder, with_pip=True, clear=True)
    for packages in peer.installs:
        command = [str(peer.python), "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"pip install {' '.join(packages)} failed: {last_line(done.stderr)}"
    ready.write_text(wanted)
    return None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["the process was killed"])[-1]


def exchanged(name: str, x: Array) -> Path:
    """Write the rows to a file that the tools read."""
    path = SCRATCH / "exchange" / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, x)
    return path
