"""Factorial designs: every combination of the values of some switches, one experiment each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from anisoscope.errors import InputError
from anisoscope.studies.lab.experiment import KINDS, Experiment, changed, switch_of

Levels = Mapping[str, str]  # the value of each switch, as text


@dataclass(frozen=True)
class Factorial:
    """A full factorial design.

    Attributes:
        values: The values of each switch. Effects compare the others with the first.
        cells: The experiments by name: one per combination of values.
        levels: The value of each switch in each cell, by name of the cell.
    """

    values: Mapping[str, Sequence[str]]
    cells: Mapping[str, Experiment]
    levels: Mapping[str, Levels]

    def levels_of(self, experiment: Experiment) -> Levels:
        """Return the value of each switch in an experiment of this design, whatever its seed."""
        for name, cell in self.cells.items():
            if cell == replace(experiment, recipe=replace(experiment.recipe, seed=cell.recipe.seed)):
                return self.levels[name]
        raise InputError("The experiment is not part of this design. Build the design from the same switches.")


def factorial(base: Experiment, switches: Iterable[str]) -> Factorial:
    """Return the experiments of a comparison: every combination of the values of the switches.

    The cell with the values of the base is called `base`; the others are named after what differs from it.

    Args:
        base: The base, which has all other switches.
        switches: Each as `name=value,value,…`, or `text=value;value`. A single value is compared with that of the
            base. Empty for the three kinds of model.

    Raises:
        InputError: A switch or a value is wrong, or two switches set the same thing.

    >>> list(factorial(Experiment(), ["attention=softmax,sigmoid", "norm_at=post"]).cells)
    ['base', 'norm_at-post', 'attention-sigmoid', 'attention-sigmoid+norm_at-post']
    >>> list(factorial(Experiment(), []).cells)
    ['decoder', 'causal-masked', 'encoder']
    """
    values: dict[str, list[str]] = {}
    for switch in switches:
        name, listed = _parsed(switch)
        if name in values:
            raise InputError(f"{name} is given twice. List all its values in one --switch.")
        values[name] = _distinct(base, name, listed)
    values = values or {"kind": list(KINDS)}
    of_kinds = values == {"kind": list(KINDS)}
    cells: dict[str, Experiment] = {}
    levels: dict[str, Levels] = {}
    for chosen in product(*values.values()):
        level = dict(zip(values, chosen, strict=True))
        cell = changed(base, level)
        if cell in cells.values():
            raise InputError(f"{' and '.join(values)} set the same thing. Vary only one of them.")
        name = level["kind"] if of_kinds else _name(base, level)
        cells[name], levels[name] = cell, level
    return Factorial(values, cells, levels)


def _parsed(switch: str) -> tuple[str, list[str]]:
    name, values = switch_of(switch)
    if name == "seed":
        raise InputError("Effects are averaged over seeds, so seed is not a switch to compare. Use --seeds N.")
    mark = ";" if name == "text" else ","  # options of a text contain commas
    return name, [part.strip() for part in values.split(mark) if part.strip()]


def _distinct(base: Experiment, name: str, listed: Sequence[str]) -> list[str]:
    """The values that give different experiments; the value of the base is added if it would be alone otherwise."""
    by_cell: list[tuple[Experiment, str]] = []
    for value in listed:
        cell = changed(base, {name: value})
        if all(cell != other for other, _ in by_cell):
            by_cell.append((cell, value))
    if len(by_cell) == 1:
        if by_cell[0][0] == base:
            raise InputError(f"{name} is {by_cell[0][1]} in all models, so it has no effect. List another value.")
        by_cell.insert(0, (base, _value_of(base, name)))
    return [value for _, value in by_cell]


def _value_of(base: Experiment, name: str) -> str:
    """The value of a switch in the base, as the command line would give it."""
    if name == "kind":
        return next(kind for kind in KINDS if changed(base, {"kind": kind}) == base)
    value = base.flat()[name]
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _name(base: Experiment, level: Levels) -> str:
    parts = [f"{name}-{value}" for name, value in level.items() if changed(base, {name: value}) != base]
    return "+".join(parts).replace("/", "_").replace(":", "_") or "base"
