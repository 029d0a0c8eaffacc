"""Kinds of looks at a model: which metrics, where; and runs that are made once and kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anisoscope.store.run import Run

STREAM = ("embed", "resid", "final")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """A kind of look at a model: which metrics, where."""

    name: str
    metrics: tuple[str, ...]
    sites: tuple[str, ...] = STREAM
    weights: bool = False
    spread: bool = False  # whether the spread over batches, as papers report it, is wanted of a text
    grouped: bool = False  # too slow to leave out block after block of a model given: it is read group by group


SHAPE = Kind(
    "shape",
    (
        *("mean_cosine", "mean_cosine_centred", "mean_cosine_across_documents", "drift_norm", "relative_drift"),
        *("spectral_anisotropy", "isoscore"),
    ),
    spread=True,
)
TYLER = Kind("tyler", ("tyler_share",), grouped=True)
DIMENSION = Kind("dimension", ("two_nn", "two_nn_paper", "gride"))
LOCAL = Kind("local", ("local_isotropy", "isoscore"), grouped=True)
HEADS = Kind("heads", ("attention_entropy", "q_drift", "k_drift", "qk_cosine", "logit_budget"), ("pattern",))
REMOVAL = Kind("removal", ("removal_curve",), ("resid",))
BELL = Kind("bell", ("spectral_anisotropy", *REMOVAL.metrics), spread=True)  # both in one pass
WEIGHTS = Kind("weights", ("mean_cosine", "partition_isotropy"), weights=True)


def kept(folder: Path, make: Callable[[Path], Run]) -> Run:
    """The run in a folder if it was made to its end; else what is there goes and it is made."""
    if (folder / "run.json").is_file():
        run = Run.open(folder)
        if run.info.get("whole"):
            return run
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = make(folder)
    made.close()
    with Run.create(folder, resume=True) as run:
        run.update_info(whole=True)
    return Run.open(folder)
