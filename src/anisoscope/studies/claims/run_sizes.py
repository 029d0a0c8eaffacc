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
    short: int  # steps of the trainings with an intervention, which are compared at equal loss
    seconds_per_step: float  # processor time of a lab training
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
    def saved_steps(self) -> tuple[int, ...]:
        """The steps at which a training is saved: log-spaced, three per doubling, and the shares that rules name."""
        spaced = {round(2 ** (power / 3)) for power in range(3 * self.steps.bit_length())}
        shares = {round(share * self.steps) for share in SHARES}
        return tuple(sorted(step for step in {*spaced, *shares} if step <= self.steps))

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps at which a training is measured: close together early, when most changes."""
        return tuple(sorted({round(share * self.steps) for share in SHARES}))

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
SHARES = (0, 1 / 250, 1 / 125, 1 / 60, 1 / 32, 1 / 16, 1 / 8, EARLY, 0.5, 0.75, 1)  # measured, of the steps

_SMALL = {"layers": 6, "width": 64, "heads": 4, "context": 64, "batch": 8, "steps": 3000, "learning_rate": 0.005}
_END = {"decay": 0.75, "floor": 0.02}  # the learning rate is low in the last quarter, so that the loss has settled
_MEDIUM = {
    "layers": 6,
    "width": 192,
    "heads": 6,
    "context": 256,
    "batch": 4,
    "steps": 5000,
    "learning_rate": 0.002,
    "text": "docstrings",
    "tokens": "bpe",
    "symbols": 4096,
}
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
            short=6,
            seconds_per_step=0.06,
            tokens=4096,
            batch_tokens=1024,
            smoke_test=True,
        ),
        Size(
            "small",
            seeds=5,
            switches={**_SMALL, **_END, "masking": 0.3, "rank": 8, "refresh": 40},
            windows=64,
            sample=1024,
            draws=12,
            block=(256, 4, 128),
            blocks=80,
            short=1200,
            seconds_per_step=0.035,
        ),
        Size(
            "medium",
            seeds=3,
            switches={**_MEDIUM, **_END, "masking": 0.3, "rank": 16, "refresh": 100},
            windows=32,
            sample=2048,
            draws=12,
            block=(256, 4, 128),
            blocks=80,
            short=1500,
            seconds_per_step=0.4,
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
            short=20_000,
            seconds_per_step=1.8,
            tokens=1_048_576,
        ),
    )
}


# Trainings that figures show and no rule uses: only as many seeds as an interval needs.
SHOWN = ("untied-sgd", "narrow", "wide")


def cells(size: Size) -> dict[str, dict[str, Any]]:
    """Return the switches of each lab training by name: the three kinds, and decoders with one change.

    The first six are trained to the end; the others are shorter, and compared at equal loss. `isoscore-*`, `centring-*`
    and `temperature-*` are doses, in rising order.
    """
    width, short = int(size.switches["width"]), {"steps": size.short}
    changed: dict[str, dict[str, Any]] = {
        SHORT_DECODER: {},
        "sigmoid": {"attention": "sigmoid"},
        "off-by-one": {"attention": "off-by-one"},
        "cosine": {"attention": "cosine"},
        "mean-free-queries": {"mean_free": "queries"},
        "mean-free-keys": {"mean_free": "keys"},
        "tangent-only": {"project": "tangent"},
        "random-only": {"project": "random"},
        "untied-sgd": {"tied": False, "optimizer": "sgd", "learning_rate": 0.1},
        "narrow": {"tied": False, "width": width // 2},
        "wide": {"tied": False, "width": width * 2},
        **{f"isoscore-{weight:g}": {"isoscore": weight} for weight in ISOSCORE},
        **{f"centring-{share:g}": {"centring": share} for share in CENTRING},
        **{f"temperature-{t:g}": {"temperature": t} for t in TEMPERATURE},
        **_causes(size.short // 2),
    }
    return {
        "decoder": {"kind": "decoder"},
        "encoder": {"kind": "encoder"},
        "causal-masked": {"kind": "causal-masked"},
        "untied": {"tied": False},
        "learned-decoder": {"positions": "learned"},
        "words": {"tokens": "bpe", "symbols": int(size.switches.get("symbols", 1024)), "tied": False},
        **{name: {**short, **switches} for name, switches in changed.items()},
    }


SHORT_DECODER = "short-decoder"  # the decoder that the other short trainings are compared with
ISOSCORE = (0.1, 1.0)  # weights of the regulariser; the short decoder has 0
CENTRING = (0.5, 1.0)  # shares of the mean that are removed; the short decoder has 0
TEMPERATURE = (0.5, 2.0)  # of attention; the short decoder has 1
NEXT, UNIFORM, NO_ATTENTION, MASKED = "softmax-next", "uniform-next", "none-next", "softmax-masked"  # on Zipf's law
EXPONENTS = (0.5, 1.5)  # of Zipf's law


def cause_cells() -> dict[str, str]:
    """Return the cells that separate attention, objective and token distribution, each with its description."""
    words = {
        NEXT: "softmax attention, next token",
        UNIFORM: "uniform attention, next token",
        NO_ATTENTION: "no attention, next token",
        MASKED: "softmax attention, masked token",
    }
    return {f"{cell}-{e:g}": f"{text}, Zipf exponent {e:g}" for e in EXPONENTS for cell, text in words.items()}


def _causes(steps: int) -> dict[str, dict[str, Any]]:
    """Their switches. The next token often repeats this one, so a model without attention can learn the text too.

    A masked model predicts three tenths of the tokens, and learns in four times as many steps what the others learn.
    """
    kinds: dict[str, dict[str, Any]] = {
        NEXT: {},
        UNIFORM: {"attention": "uniform"},
        NO_ATTENTION: {"attention": "none"},
        MASKED: {"kind": "causal-masked"},
    }
    plain = {"tokens": "char", "symbols": None}
    return {
        f"{cell}-{e:g}": {
            **kind,
            **plain,
            "steps": max(1, steps) * (4 if cell == MASKED else 1),
            "text": f"zipf:exponent={e:g},vocabulary=256,copy=0.5,lag=1",
        }
        for e in EXPONENTS
        for cell, kind in kinds.items()
    }
