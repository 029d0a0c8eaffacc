"""Other people's tools on the same rows: how long they take and what they answer.

scikit-dimension and IsoScore share our environment. Those whose pins fight ours get one each under .bench/, made when
first needed, and are handed .npy files. A peer that cannot be installed or run appears with the reason.
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
    """A tool in an environment of its own: what pip installs there, step by step, and the script that runs it."""

    name: str
    installs: tuple[tuple[str, ...], ...]
    script: str
    slow: bool = False  # a large cloud would take it hours
    settings: tuple[str, ...] = ()  # of its process, as env takes them

    @property
    def folder(self) -> Path:
        return SCRATCH / Path(self.script).stem.removeprefix("peer_")

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


OUTSIDE = (
    Peer("DADApy", (("dadapy==0.3.4",),), "peer_dadapy.py"),
    Peer("faiss flat", (("faiss-cpu==1.15.1", "numpy>=2"),), "peer_faiss.py"),
    # torch first and pinned: an unpinned one pulls gigabytes of GPU packages
    Peer(
        "llm-microscope",
        (("torch==2.13.0", "numpy>=2"), ("llm-microscope==0.0.7",)),
        "peer_llm_microscope.py",
        slow=True,
        # every row's differences to all others, freed at once, else stay in the allocator's heap: 9 GB for 1,000 rows
        # of width 768 instead of 0.3, and half as slow again
        settings=("MALLOC_MMAP_THRESHOLD_=262144",),
    ),
)


@dataclass(frozen=True)
class Answer:
    """A dimension and the seconds it took, or the reason there is none."""

    value: float | None
    seconds: float | None
    reason: str | None = None


Estimator = Callable[[Array, Path], Answer]  # the rows, and the file that holds them


def peers(settings: Settings) -> Outcome:
    """TwoNN's times on large rows, its answers on clouds of known dimension, and IsoScore's time."""
    n, few, small = (2048, 256, 500) if settings.quick else (16384, 1000, 2000)
    fast = _inside() | outside(settings, [peer for peer in OUTSIDE if not peer.slow])
    slow = outside(settings, [peer for peer in OUTSIDE if peer.slow])
    rounds = 1 if settings.quick else 3
    figures = _times(n, {name: fast[name] for name in fast if name != GRIDE}, rounds)
    figures += _times(few, {OURS: fast[OURS], **slow}, 1)
    figures += _isoscore(n, settings)
    return Outcome(figures, _answers(small, fast | slow))


def search_commands(settings: Settings) -> dict[str, str]:
    """The outside peers that can search many rows, as commands for the benchmark of the search."""
    found = {}
    for peer in OUTSIDE:
        reason = None if peer.slow else installed(peer)
        if reason:
            print(f"{peer.name} is left out of the search: {reason}")
        elif not peer.slow:
            found[peer.name] = shlex.join(command_of(peer, settings.threads))
    return found


def flat(n: int, k: int, d: int, *, offset: float = 0.0) -> Array:
    """A k-dimensional Gaussian, turned into d dimensions."""
    draw = np.random.default_rng(0)
    frame = np.linalg.qr(draw.standard_normal((d, d)))[0][:k]  # (k, d)
    turned: Array = draw.standard_normal((n, k)) @ frame + offset
    return turned


def sphere(n: int, d: int) -> Array:
    """The surface of the unit ball in d dimensions, which has d − 1."""
    x = np.random.default_rng(0).standard_normal((n, d))
    surface: Array = x / np.linalg.norm(x, axis=1, keepdims=True)
    return surface


def with_copies(x: Array) -> Array:
    """The rows, every tenth of them a copy of the one before."""
    copied = x.copy()
    copied[9::10] = x[8::10][: len(x[9::10])]
    return copied


# true dimension, and how to make n rows of it
KNOWN: dict[str, tuple[int, Callable[[int], Array]]] = {
    "Gaussian in 20-D": (5, lambda n: flat(n, 5, 20)),
    "sphere S⁹": (9, lambda n: sphere(n, 10)),
    "Gaussian": (64, lambda n: flat(n, 64, 64)),
    "5-D, 10 % copies": (5, lambda n: with_copies(flat(n, 5, 20))),
    "5-D in 64-D, float32, offset 1000": (5, lambda n: flat(n, 5, 64, offset=1000.0).astype(np.float32)),
}
OURS, GRIDE = "anisoscope", "skdim GRIDE"


def _times(n: int, estimators: dict[str, Estimator], rounds: int) -> list[Figure]:
    """Each estimator's time on n rows of 10 dimensions in 768, as a multiple of ours, in turn."""
    x = flat(n, 10, 768).astype(np.float32)
    path = exchanged(f"flat-{n}", x)
    said: dict[str, list[Answer]] = {name: [] for name in estimators}
    for _ in range(rounds):
        for name, estimate in estimators.items():
            said[name].append(estimate(x, path))
    ours = [answer.seconds or 0.0 for answer in said[OURS]]
    return [_time(f"TwoNN of {n:,} × 768, {name}", answers, ours) for name, answers in said.items()]


def _time(name: str, answers: list[Answer], ours: list[float]) -> Figure:
    reason = next((answer.reason for answer in answers if answer.reason), None)
    if reason:
        return Figure(name, None, "×", note=reason)
    took = [answer.seconds or 0.0 for answer in answers]
    each = [a / b for a, b in zip(took, ours, strict=True)]
    note = f"{statistics.median(took):.2f} s, answers {answers[0].value:.2f} where 10 is true"
    return Figure(name, statistics.median(each), "× ours", rounds=each, note=note)


def _answers(n: int, estimators: dict[str, Estimator]) -> dict[str, dict[str, str]]:
    """What each says of clouds whose dimension is known."""
    table = {}
    for name, (true, make) in KNOWN.items():
        x = make(n)
        path = exchanged(f"{list(KNOWN).index(name)}-{n}", x)
        said = {which: estimate(x, path) for which, estimate in estimators.items()}
        table[f"{name} ({true})"] = {which: _cell(answer) for which, answer in said.items()}
    return table


def _cell(answer: Answer) -> str:
    return f"{answer.value:.2f}" if answer.value is not None else f"none: {answer.reason}"


def _isoscore(n: int, settings: Settings) -> list[Figure]:
    """IsoScore of the package that its authors publish: its time as a multiple of ours, and how far the scores are."""
    x = torch.from_numpy(flat(n, 768, 768).astype(np.float32))  # (n, d)
    package = import_module("IsoScore.IsoScore").IsoScore
    times = in_turn({"package": lambda: package(x), "ours": lambda: metrics.isoscore(x)}, settings.rounds)
    theirs, ours = float(package(x.double())), metrics.isoscore(x)
    apart = Figure("IsoScore, distance from the package's in float64", abs(theirs - ours), "", 1e-6)
    return [ratio(f"IsoScore of {n:,} × 768, the package, in ours", times, "package", "ours"), apart]


def _inside() -> dict[str, Estimator]:
    """The estimators of our own environment."""
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
    """Peers of other environments, each installed where it is not yet."""
    found: dict[str, Estimator] = {}
    for peer in chosen:
        reason = installed(peer)
        found[peer.name] = partial(_refused, reason) if reason else partial(_run, command_of(peer, settings.threads))
    return found


def _refused(reason: str, x: Array, path: Path) -> Answer:
    return Answer(None, None, reason)


def _run(command: list[str], x: Array, path: Path) -> Answer:
    """A peer's answer on a file; it prints the dimension, its work and its wall time in seconds."""
    done = subprocess.run(
        [*command, str(path), "2"], capture_output=True, text=True, check=False, preexec_fn=_hold_memory
    )
    if done.returncode:
        return Answer(None, None, last_line(done.stderr))
    value, work, wall = map(float, done.stdout.split()[-3:])
    took = work if torch.get_num_threads() == 1 else wall  # as `clock` does for jobs in this process
    return Answer(value, took) if math.isfinite(value) else Answer(None, took, str(value))


def _hold_memory() -> None:
    """Holds a peer to half of the machine."""
    half = psutil.virtual_memory().total // 2
    resource.setrlimit(resource.RLIMIT_AS, (half, half))


def command_of(peer: Peer, threads: int) -> list[str]:
    """The peer's script in its environment, its libraries held to so many threads."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    settings = (*(f"{pool}={threads}" for pool in pools), *peer.settings)
    return ["env", *settings, str(peer.python), str(Path(__file__).parent / peer.script)]


def installed(peer: Peer) -> str | None:
    """Makes the peer's environment where there is none; the reason where that fails."""
    ready = peer.folder / "installed"
    wanted = repr(peer.installs)
    if ready.exists() and ready.read_text() == wanted:
        return None
    print(f"making the environment of {peer.name} in {peer.folder.relative_to(SCRATCH.parent)}", flush=True)
    venv.create(peer.folder, with_pip=True, clear=True)
    for packages in peer.installs:
        command = [str(peer.python), "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"pip install {' '.join(packages)} failed: {last_line(done.stderr)}"
    ready.write_text(wanted)
    return None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it was killed"])[-1]


def exchanged(name: str, x: Array) -> Path:
    """The rows as a file that the peers read."""
    path = SCRATCH / "exchange" / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, x)
    return path
