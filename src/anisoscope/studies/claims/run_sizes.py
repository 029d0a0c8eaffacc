"""Sizes of the runs of claims, and the lab trainings that claims share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Size:
    """All numbers that depend on the size of a run."""

    name: str
    seeds: int  # trainings per cell, the units of the lab
    switches: Mapping[str, Any]  # of every training
    windows: int  # held-out windows per measurement
    sample: int  # rows kept for neighbour metrics and shapes
    draws: int  # seeds of simulations
    block: tuple[int, int, int]  # width of an untrained block, number and length of its sequences
    blocks: int  # seeds of it: 80 that agree put a share above 95 %
    train_seconds: float  # of one lab training
    tokens: int = 65_536  # on which a model of the user is measured
    batch_tokens: int = 4096  # per batch; papers report the spread over batches
    smoke_test: bool = False  # tests the commands: the lab models learn nothing, so no claim is judged by them

    def with_seeds(self, seeds: int | None) -> Size:
        """Return the same size with another number of seeds, unless it is None."""
        return self if seeds is None else replace(self, seeds=seeds)

    @property
    def steps(self) -> int:
        """Steps of a lab training."""
        return int(self.switches["steps"])

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps at which a training is measured: close together early, when most changes."""
        shares = (0, 1 / 32, 1 / 8, EARLY, 0.5, 0.75, 1)
        return tuple(sorted({round(share * self.steps) for share in shares}))

    @property
    def early(self) -> tuple[int, ...]:
        """Measured steps of early training: after step 0, up to the step at which the published bases are frozen."""
        return tuple(step for step in self.measured_steps if 0 < step <= self.frozen)

    @property
    def late(self) -> tuple[int, ...]:
        """Measured steps of the second half of training."""
        return tuple(step for step in self.measured_steps if step > self.steps / 2)

    @property
    def frozen(self) -> int:
        """The measured step at which the published bases are frozen."""
        return round(EARLY * self.steps)


EARLY = 0.3  # of training, by steps

_SMALL = {"layers": 6, "width": 64, "heads": 4, "context": 64, "batch": 8, "steps": 300, "learning_rate": 0.005}
_TINY = {"layers": 3, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 6, "learning_rate": 0.01}
SIZES: Mapping[str, Size] = {
    size.name: size
    for size in (
        Size(
            "tiny",
            seeds=3,
            switches={**_TINY, "masking": 0.3, "rank": 3, "refresh": 4},
            windows=32,
            sample=256,
            draws=4,
            block=(32, 2, 32),
            blocks=4,
            train_seconds=0.4,
            tokens=4096,
            batch_tokens=1024,
            smoke_test=True,
        ),
        Size(
            "small",
            seeds=5,
            switches={**_SMALL, "masking": 0.3, "rank": 8, "refresh": 40},
            windows=64,
            sample=1024,
            draws=12,
            block=(256, 4, 128),
            blocks=80,
            train_seconds=14,
        ),
        Size(
            "paper",
            seeds=5,
            switches={**_SMALL, "masking": 0.15, "rank": 32, "width": 384, "layers": 12, "steps": 20_000, "heads": 6},
            windows=512,
            sample=4096,
            draws=40,
            block=(768, 16, 512),
            blocks=80,
            train_seconds=36_000,
            tokens=1_048_576,
        ),
    )
}


# Trainings that figures show and no rule uses: only as many seeds as an interval needs.
SHOWN = ("normal-only", "uniform", "no-attention", "untied-sgd", "narrow", "wide")

# Trainings without a handicap, whose loss shows whether the lab has learnt anything.
REFERENCES = ("decoder", "untied", "encoder")
# The same, but harder to learn: a loss no better than that of counts is reported and decides nothing.
HARDER = ("words", "causal-masked")


def cells(size: Size) -> dict[str, dict[str, Any]]:
    """Return the switches of each lab training by name: the three kinds, and decoders with one change.

    `isoscore-*`, `centring-*` and `temperature-*` are doses, in rising order.
    """
    width = int(size.switches["width"])
    return {
        "decoder": {"kind": "decoder"},
        "causal-masked": {"kind": "causal-masked"},
        "encoder": {"kind": "encoder"},
        "uniform": {"attention": "uniform"},
        "no-attention": {"attention": "none"},
        "sigmoid": {"attention": "sigmoid"},
        "off-by-one": {"attention": "off-by-one"},
        "cosine": {"attention": "cosine"},
        "tangent-only": {"project": "tangent"},
        "normal-only": {"project": "normal"},
        "random-only": {"project": "random"},
        "words": {"tokens": "bpe", "symbols": 512},
        "untied": {"tied": False},
        "untied-sgd": {"tied": False, "optimizer": "sgd", "learning_rate": 0.1},
        "narrow": {"tied": False, "width": width // 2},
        "wide": {"tied": False, "width": width * 2},
        **{f"isoscore-{weight:g}": {"isoscore": weight} for weight in ISOSCORE},
        **{f"centring-{share:g}": {"centring": share} for share in CENTRING},
        **{f"temperature-{t:g}": {"temperature": t} for t in TEMPERATURE},
    }


ISOSCORE = (0.1, 1.0)  # weights of the regulariser; the decoder has 0
CENTRING = (0.5, 1.0)  # shares of the mean that are removed; the decoder has 0
TEMPERATURE = (0.5, 2.0)  # of attention; the decoder has 1
