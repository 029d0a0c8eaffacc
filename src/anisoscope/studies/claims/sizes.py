"""How large the runs of the claims are, and the trainings of the lab that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Size:
    """Everything that may be smaller or larger; `train_seconds` is what one training of the lab takes."""

    name: str
    seeds: int  # trainings of each cell, the units of the lab
    switches: Mapping[str, Any]  # of every training
    windows: int  # held-out windows that a look reads
    sample: int  # rows of them for neighbours and shapes
    draws: int  # seeds of what needs no training
    block: tuple[int, int, int]  # width of an untrained block, its sequences and their length
    blocks: int  # seeds of it: 80 that agree put a share of 95 % beyond doubt
    train_seconds: float
    tokens: int = 65_536  # of a text that a model given is measured on
    batch_tokens: int = 4096  # a batch, over which papers report the spread

    def with_seeds(self, seeds: int | None) -> Size:
        """The same with another number of seeds, where one is given."""
        return self if seeds is None else replace(self, seeds=seeds)

    @property
    def steps(self) -> int:
        return int(self.switches["steps"])

    @property
    def looks(self) -> tuple[int, ...]:
        """The steps at which a training is looked at: close together early, where everything moves."""
        shares = (0, 1 / 32, 1 / 8, EARLY, 0.5, 0.75, 1)
        return tuple(sorted({round(share * self.steps) for share in shares}))

    @property
    def early(self) -> tuple[int, ...]:
        """The looks of early training, after the first step and up to where the published bases are frozen."""
        return tuple(step for step in self.looks if 0 < step <= self.frozen)

    @property
    def late(self) -> tuple[int, ...]:
        return tuple(step for step in self.looks if step > self.steps / 2)

    @property
    def frozen(self) -> int:
        """The look at which the published bases are frozen."""
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


# Trainings that a figure shows and no rule judges, or none on the lab: as few seeds as make an interval.
SHOWN = ("normal-only", "uniform", "no-attention", "untied-sgd", "narrow", "wide")


def cells(size: Size) -> dict[str, dict[str, Any]]:
    """The trainings by name: the three kinds, and decoders of which one thing is changed.

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
CENTRING = (0.5, 1.0)  # shares of the mean taken out; the decoder has 0
TEMPERATURE = (0.5, 2.0)  # of attention; the decoder has 1
