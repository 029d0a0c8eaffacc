"""What a logger receives: names that group well, a summary over layers and heads, and heat maps."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from anisoscope.records import Record, Site

PREFIX = "geometry"
_LOOP = "loop"
_BY_CONCEPT = ("concept_share", "concept_drift")  # numbers of concepts mean nothing in other layers
_NO_SINK = "no-sink"
_LEAST = 3  # values of a group that are worth a summary
_CELL = 12  # pixels of a cell of a heat map
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # viridis


@dataclass(frozen=True)
class HeatMap:
    """One metric over layers and heads at one step, as an image.

    Attributes:
        name: The name under which it is logged.
        pixels: (height, width, 3) bytes; layers from the bottom up, heads from left to right.
        caption: The smallest and the largest value.
    """

    name: str
    pixels: NDArray[np.uint8]
    caption: str


def by_step(records: Sequence[Record], *, detail: bool) -> list[tuple[int, dict[str, float]]]:
    """Return the values of records by step and name, without records that have no value.

    Args:
        records: The records.
        detail: Every record; otherwise the summaries of `summarised`.
    """
    steps = groupby(sorted(records, key=attrgetter("step")), key=attrgetter("step"))
    return [(step, dict(_named(group) if detail else summarised(list(group)))) for step, group in steps]


def summarised(records: Sequence[Record]) -> Iterator[tuple[str, float]]:
    """Yield values of the loop as they are, and smallest, median and largest value over layers of everything else.

    If a value is known without sink tokens, that of all tokens is left out.

    >>> records = [Record(f"resid.{i}", "isoscore", 0.1 * i, tokens="no-sink") for i in range(3)]
    >>> [name.removeprefix("geometry/isoscore/") for name, _ in summarised(records)]
    ['resid/no-sink/min', 'resid/no-sink/median', 'resid/no-sink/max']
    """
    groups: dict[str, list[Record]] = {}
    filtered = {_without_policy(record) for record in records if record.tokens == _NO_SINK and record.value is not None}
    for record in records:
        if record.value is not None and (record.tokens == _NO_SINK or _without_policy(record) not in filtered):
            groups.setdefault(_group_of(record), []).append(record)
    for name, group in groups.items():
        numbers = [record.value for record in group if record.value is not None]
        if len(numbers) < _LEAST:
            yield from _named(group)
        else:
            yield f"{name}/min", min(numbers)
            yield f"{name}/median", statistics.median(numbers)
            yield f"{name}/max", max(numbers)


def name_of(record: Record) -> str:
    """Return a name that every logger accepts and that no two records of one step share.

    >>> name_of(Record("resid.3", "gradient_energy", 0.4, index=32, variant={"proxy": "pca", "basis": "frozen"}))
    'geometry/gradient_energy/resid.3/frozen/pca/32'
    """
    index = [] if record.index is None else [str(record.index)]
    return _joined([record.metric, record.site, *_rest(record), *index])


def flat_name(name: str) -> str:
    """Return a name in which dots join what follows the metric, so that no name is a folder of another.

    >>> flat_name("geometry/isoscore/resid/no-sink/median")
    'geometry/isoscore/resid.no-sink.median'
    """
    prefix, metric, *rest = name.split("/")
    return "/".join((prefix, metric, ".".join(rest)))


def heat_maps(records: Sequence[Record], least: int = 4) -> list[tuple[int, HeatMap]]:
    """Return images of the metrics that have a value per layer and head, by step.

    Args:
        records: The records.
        least: The fewest cells that are worth an image.
    """
    maps: dict[tuple[int, str], dict[tuple[int, int], float]] = {}
    for record in records:
        site = Site.parse(record.site) if record.metric != "alert" else None
        if site is None or site.kind != "pattern" or record.index is None or record.value is None:
            continue
        name = _joined(["maps", record.metric, *_rest(record), *([site.stack] if site.stack else [])])
        maps.setdefault((record.step, name), {})[site.layer or 0, record.index] = record.value
    return [
        (step, HeatMap(name, _painted(cells), f"{min(cells.values()):.3g} (dark) to {max(cells.values()):.3g} (light)"))
        for (step, name), cells in maps.items()
        if len(cells) >= least
    ]


def _named(records: Iterable[Record]) -> list[tuple[str, float]]:
    return [(name_of(record), record.value) for record in records if record.value is not None]


def _group_of(record: Record) -> str:
    """The name without layer and head; ranks and scales stay, because values of different ranks do not compare."""
    if record.site == _LOOP or record.metric == "alert":
        return name_of(record)
    site = Site.parse(record.site)
    kind = ".".join(part for part in ("grad" if site.grad else "", site.stack, site.kind) if part)
    heads = site.kind == "pattern"
    index = [] if record.index is None or heads or record.metric in _BY_CONCEPT else [str(record.index)]
    return _joined([record.metric, kind if site.layer is not None else record.site, *_rest(record), *index])


def _without_policy(record: Record) -> tuple[object, ...]:
    """What two records of one step share that differ only in the tokens that count."""
    return record.site, record.metric, record.index, *sorted(record.variant.items())


def _rest(record: Record) -> list[str]:
    tokens = [] if record.tokens == "all" else [record.tokens]
    hidden = {"since"} if record.metric == "alert" else set()
    return [*tokens, *(str(entry) for key, entry in sorted(record.variant.items()) if key not in hidden)]


def _joined(parts: Sequence[str]) -> str:
    return "/".join(re.sub(r"[^\w.\- ]", "_", part) for part in (PREFIX, *parts))


def _painted(cells: dict[tuple[int, int], float]) -> NDArray[np.uint8]:
    """Paint (layer, head) -> value as squares; cells without a value are grey."""
    layers, heads = (1 + max(key[axis] for key in cells) for axis in (0, 1))
    low, high = min(cells.values()), max(cells.values())
    image = np.full((layers, heads, 3), 128, dtype=np.uint8)
    stops = np.array(_STOPS, dtype=float)
    for (layer, head), value in cells.items():
        at = (value - low) / (high - low) * (len(stops) - 1) if high > low else 0.0
        colour = [np.interp(at, range(len(stops)), stops[:, channel]) for channel in range(3)]
        image[layers - 1 - layer, head] = np.round(colour)
    return image.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
