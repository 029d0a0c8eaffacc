"""Known dimensions: the manifolds of scikit-dimension's benchmark, measured by our estimators and others."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope import measure_rows
from benchmarks.accuracy.coverage import Array, named
from benchmarks.harness import SCRATCH
from benchmarks.peers import OUTSIDE, command_of, installed, last_line

ROWS = 2500
OURS = ("two_nn", "two_nn_ml", "gride", "mle_dimension", "local_pca_dimension")
DADAPY = next(peer for peer in OUTSIDE if peer.name == "DADApy")
SCRIPT = Path(__file__).parent.parent / "peer_dadapy_scales.py"


@dataclass(frozen=True)
class Answer:
    """The answer of one estimator on one manifold, or the reason why it is missing."""

    manifold: str
    true: int
    width: int
    estimator: str
    value: float | None
    reason: str | None = None


def manifolds(quick: bool) -> list[str]:
    names = list(_benchmark().truth.index)
    return names[:2] if quick else names


def answers(name: str, quick: bool) -> list[Answer]:
    """Return the answers of all estimators on one manifold."""
    truth = _benchmark().truth.loc[name]
    true, width = int(truth["Intrinsic Dimension"]), int(truth["Number of variables"])
    x = np.asarray(_benchmark().generate(name, n=500 if quick else ROWS, dim=width, d=true), dtype=np.float64)
    x = x[np.random.default_rng(0).permutation(len(x))]
    values = [*_ours(x), *_scikit_dimension(x), *_dadapy(name, x)]
    return [Answer(name, true, width, *each) for each in values]


def _benchmark() -> Any:
    return import_module("skdim.datasets").BenchmarkManifolds(random_state=0)


def _ours(x: Array) -> Iterator[tuple[str, float | None, str | None]]:
    for record in measure_rows(x, list(OURS), errors=False, sample=len(x)):
        variant = {key: value for key, value in record.variant.items() if key not in ("neighbours", "share", "k")}
        yield " ".join(named(record.metric, record.index, variant)), record.value, record.note


def _scikit_dimension(x: Array) -> Iterator[tuple[str, float | None, str | None]]:
    known = import_module("skdim.id")
    estimators = {
        "skdim TwoNN": known.TwoNN(),
        "skdim GRIDE": known.GRIDE(),
        "skdim MLE": known.MLE(K=20),
        "skdim lPCA": known.lPCA(),
    }
    for name, estimator in estimators.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield name, float(estimator.fit(x).dimension_), None
        except Exception as error:  # another tool may fail in any way; its message is the answer
            yield name, None, str(error)


def _dadapy(name: str, x: Array) -> Iterator[tuple[str, float | None, str | None]]:
    reason = installed(DADAPY)
    if reason:
        yield "DADApy 2NN", None, reason
        return
    path = SCRATCH / "exchange" / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, x)
    command = [*command_of(DADAPY, 1)[:-1], str(SCRIPT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield "DADApy 2NN", None, last_line(done.stderr)
        return
    for which, value in json.loads(done.stdout.splitlines()[-1]).items():
        yield f"DADApy {which}", value, None
