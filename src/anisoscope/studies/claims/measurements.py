"""Kinds of measurements that claims use, and runs that are computed once and then read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anisoscope.store.run import Run

STREAM = ("embed", "resid", "final")
OnStatus = Callable[[str], None]  # called with a short text about the current work


@dataclass(frozen=True)
class MeasurementKind:
    """Which metrics a measurement computes, and at which sites."""

    name: str
    metrics: tuple[str, ...]
    sites: tuple[str, ...] = STREAM
    weights: bool = False  # of the vocabulary matrices instead of hidden states
    spread: bool = False  # also report the spread over batches of tokens, as papers do
    grouped: bool = False  # too slow for a jackknife on a given model: measured once per group of documents


SHAPE = MeasurementKind(
    "shape",
    (
        *("mean_cosine", "mean_cosine_centred", "mean_cosine_across_documents", "drift_norm", "relative_drift"),
        *("spectral_anisotropy", "isoscore"),
    ),
    spread=True,
)
SUBLAYERS = MeasurementKind("sublayers", ("spectral_anisotropy",))  # after every part of a layer; only in the lab
TYLER = MeasurementKind("tyler", ("tyler_share",), grouped=True)
DIMENSION = MeasurementKind("dimension", ("two_nn", "two_nn_paper", "gride"))
LOCAL = MeasurementKind("local", ("local_isotropy", "isoscore"), grouped=True)
HEADS = MeasurementKind("heads", ("attention_entropy", "q_drift", "k_drift", "qk_cosine", "logit_budget"), ("pattern",))
REMOVAL = MeasurementKind("removal", ("removal_curve",), ("resid",))
BELL = MeasurementKind("bell", ("spectral_anisotropy", *REMOVAL.metrics), spread=True)  # both in one pass
WEIGHTS = MeasurementKind("weights", ("mean_cosine", "partition_isotropy"), weights=True)


def load_or_make(folder: Path, make: Callable[[Path], Run]) -> Run:
    """Open the run in a folder if it is complete; otherwise delete the folder and make the run.

    Args:
        folder: Where the run is or will be.
        make: Creates the run in the folder and returns it.
    """
    if (folder / "run.json").is_file():
        run = Run.open(folder)
        if run.info.get("whole"):
            return run
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    make(folder).close()
    with Run.create(folder, resume=True) as run:
        run.update_info(whole=True)  # last, so that an interrupted run is made again
    return run
