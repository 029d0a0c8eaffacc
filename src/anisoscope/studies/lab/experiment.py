"""Experiments: every switch of the model and of the training by name, with defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from anisoscope.errors import InputError, unknown
from anisoscope.studies.lab.corpora import EMBEDDED
from anisoscope.studies.lab.tokens import KINDS as TOKENIZERS
from anisoscope.studies.lab.transformer import CHOICES, Config

# The same network three times, so that mask and objective never change together.
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"causal": True, "objective": "next"},
    "causal-masked": {"causal": True, "objective": "masked"},
    "encoder": {"causal": False, "objective": "masked"},
}
_CHOICES = {
    **CHOICES,
    "optimizer": ("adamw", "adam", "sgd"),
    "project": ("none", "tangent", "normal", "random"),
    "tokens": TOKENIZERS,
}
# Far beyond any small transformer: a mistyped number must not take all memory.
_MOST = {"steps": 10**9, "batch": 1 << 16, "accumulate": 1 << 16, "rank": 1 << 16, "refresh": 10**9, "symbols": 1 << 20}
_LARGEST = 1e30  # fits into float32


@dataclass(frozen=True)
class Recipe:
    """All switches of the data and the training."""

    text: str = EMBEDDED  # see corpora.open_text
    tokens: str = "char"
    symbols: int | None = None  # largest number of tokens of the tokenizer; None: all characters, or 1,024 merges
    steps: int = 2000
    batch: int = 16  # windows per backward pass
    accumulate: int = 1  # backward passes per step
    optimizer: str = "adamw"
    learning_rate: float = 2e-3
    warmup: float = 0.05  # share of the steps during which the learning rate rises
    floor: float = 0.1  # final learning rate as a share of the highest
    decay: float = 1.0  # share of the steps after which the learning rate has reached the floor
    weight_decay: float = 0.1  # of matrices; norms and biases do not decay
    clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    bf16: bool = False  # autocast to bfloat16
    masking: float = 0.15  # share of the tokens that a masked model predicts
    seed: int = 0  # of initial weights, data order, masks and dropout
    isoscore: float = 0.0  # weight in the loss of 1 − IsoScore* of every layer's output; positive pushes to isotropy
    shrinkage: float = 0.2  # ζ of that IsoScore*, as of the metric `isoscore_star`
    project: str = "none"  # the part of the hidden gradient that is kept after every layer
    rank: int = 8  # of the subspace of `project`
    refresh: int = 100  # steps after which a tangent or normal subspace is fitted again

    def __post_init__(self) -> None:
        for name in ("tokens", "optimizer", "project"):
            if getattr(self, name) not in _CHOICES[name]:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(_CHOICES[name])}.")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise InputError(f"{name} is {value:,}; it must be from 1 to {most:,}.")
        for name in ("warmup", "floor", "decay", "masking", "shrinkage"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a share from 0 to 1.")
        for name in ("learning_rate", "weight_decay", "clip", "isoscore"):
            if not abs(getattr(self, name)) <= _LARGEST:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number up to {_LARGEST:g}.")
        for name in ("learning_rate", "weight_decay", "clip", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it cannot be negative.")
        if self.seed >= 1 << 63:
            raise InputError(f"seed is {self.seed}; it must be below 2^63.")


@dataclass(frozen=True)
class Experiment:
    """A model and its training."""

    model: Config = field(default_factory=Config)
    recipe: Recipe = field(default_factory=Recipe)

    def to_json(self) -> dict[str, Any]:
        """Return the experiment as runs store it."""
        return {"model": asdict(self.model), "recipe": asdict(self.recipe)}

    def flat(self) -> dict[str, Any]:
        """Return the value of every switch by its name."""
        return {**asdict(self.model), **asdict(self.recipe)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Experiment:
        """Read an experiment from a run.

        Raises:
            InputError: The values do not describe an experiment.
        """
        try:
            return cls(Config(**values["model"]), Recipe(**values["recipe"]))
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"Not an experiment of this lab: {error}. Train again in another folder.") from error


def changed(experiment: Experiment, switches: Mapping[str, Any]) -> Experiment:
    """Return the experiment with some switches changed.

    Args:
        experiment: The base.
        switches: Values by field of `Config` or `Recipe`, or by `kind`; text is converted to the type of the field.

    Raises:
        InputError: A name or a value is wrong.

    >>> changed(Experiment(), {"kind": "encoder", "steps": "50"}).model.causal
    False
    """
    flat: dict[str, Any] = {}
    for name, value in switches.items():
        flat |= _kind(value) if name == "kind" else {name: value}
    typed = {name: _typed(name, value) for name, value in flat.items()}
    try:
        model = replace(experiment.model, **{name: v for name, v in typed.items() if name in MODEL_SWITCHES})
    except ValueError as error:
        raise InputError(str(error)) from error
    recipe = replace(experiment.recipe, **{name: v for name, v in typed.items() if name in RECIPE_SWITCHES})
    if recipe.project != "none" and recipe.rank >= model.width:
        raise InputError(f"A subspace of rank {recipe.rank} fills the width of {model.width}. Choose a smaller rank.")
    return Experiment(model, recipe)


def switch_of(text: str) -> tuple[str, str]:
    """Split `name=value` into a pair.

    Raises:
        InputError: There is no `=` or no value.

    >>> switch_of("dropout=0.1")
    ('dropout', '0.1')
    """
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise InputError(f"{text!r} is not a switch. Write name=value, such as attention=sigmoid.")
    return name.strip(), value.strip()


def _kind(name: Any) -> dict[str, Any]:
    if name not in KINDS:
        raise unknown("kind of model", str(name), KINDS)
    return KINDS[name]


def _typed(name: str, value: Any) -> Any:
    """A value as the type of its switch, converted if it is text."""
    kinds = MODEL_SWITCHES.get(name) or RECIPE_SWITCHES.get(name)
    if kinds is None:
        raise unknown("switch", name, ["kind", *MODEL_SWITCHES, *RECIPE_SWITCHES])
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(_CHOICES[name])}.")
    if not isinstance(value, str) or str in kinds:
        return value
    if NoneType in kinds and value == "none":
        return None
    try:
        parsed = json.loads(value.lower())
    except json.JSONDecodeError:
        parsed = value
    if float in kinds and type(parsed) is int:
        return float(parsed)
    if type(parsed) not in kinds:
        wanted = " or ".join(kind.__name__.replace("NoneType", "none") for kind in kinds)
        raise InputError(f"{name} is {value!r}; expected {wanted}.")
    return parsed


def _switches(kind: type) -> dict[str, tuple[type, ...]]:
    """The fields of a dataclass with the types that each may have."""
    hints = get_type_hints(kind)
    types = {each.name: hints[each.name] for each in fields(kind)}
    return {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in types.items()}


RECIPE_SWITCHES = _switches(Recipe)
MODEL_SWITCHES = _switches(Config)
