"""Which sites of two models correspond: by name, or by relative depth if the numbers of layers differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anisoscope.records import Site
from anisoscope.report.tables import parse_site

_SLACK = 1e-9


@dataclass(frozen=True)
class SitePairs:
    """The sites of a first run with their partners in a second.

    Attributes:
        partner: The second run's site for each site of the first that has one.
        depths: The relative depth of each site of the first and of the second run, if known.
        by_depth: Whether some layers were matched by relative depth.
        text: How layers were matched, as a sentence; "" if by name and the models have the same number of layers.
    """

    partner: Mapping[str, str]
    depths: tuple[Mapping[str, float], Mapping[str, float]]
    by_depth: bool
    text: str


def site_pairs(sites: Sequence[Sequence[str]], infos: Sequence[Mapping[str, Any]]) -> SitePairs:
    """Match the sites of two runs.

    If both models have the same number of layers, sites of the same name belong together. Otherwise each layer of the
    shallower model gets the layer of the deeper one at the nearest relative depth: (i + 1)/L for layer i of L, so that
    the embedding is at 0 and the last layer at 1. Only sites of one kind are matched; single heads have no partner.

    Args:
        sites: The sites of the first and of the second run.
        infos: The infos of both runs.

    >>> pairs = site_pairs([["embed", "resid.0", "resid.1"], [f"resid.{i}" for i in range(6)]], [{}, {}])
    >>> dict(pairs.partner)
    {'resid.0': 'resid.2', 'resid.1': 'resid.5'}
    """
    layers = [_layers(names, info) for names, info in zip(sites, infos, strict=True)]
    depths = tuple(_depths(names, counts) for names, counts in zip(sites, layers, strict=True))
    different = {
        stack for stack in set(layers[0]) & set(layers[1]) if None not in (layers[0][stack], layers[1][stack])
    } & {stack for stack in layers[0] if layers[0][stack] != layers[1].get(stack)}
    partner = {
        name: name
        for name in sites[0]
        if name in set(sites[1]) and not (parse_site(name).layer is not None and parse_site(name).stack in different)
    }
    for stack in different:
        shallow = 0 if (layers[0][stack] or 0) < (layers[1][stack] or 0) else 1
        nearest = _nearest(stack, [sites[shallow], sites[1 - shallow]], [depths[shallow], depths[1 - shallow]])
        partner |= nearest if shallow == 0 else {deep: name for name, deep in nearest.items()}
    return SitePairs(partner, (depths[0], depths[1]), bool(different), _text(layers, different))


def site_ranges(names: Iterable[str]) -> str:
    """Sites as text, with ranges of layers.

    >>> site_ranges(["embed", "resid.0", "resid.1", "resid.2", "resid.7", "q.1.0"])
    'embed, resid.0–2, resid.7, q.1.0'
    """
    runs: list[tuple[str, list[int]]] = []
    for name in names:
        site = parse_site(name)
        if site.layer is None or site.head is not None:
            runs.append((name, []))
            continue
        prefix = name.removesuffix(f".{site.layer}")
        if runs and runs[-1][0] == prefix and runs[-1][1] and runs[-1][1][-1] + 1 == site.layer:
            runs[-1][1].append(site.layer)
        else:
            runs.append((prefix, [site.layer]))
    return ", ".join(
        prefix if not run else f"{prefix}.{run[0]}" + (f"–{run[-1]}" if len(run) > 1 else "") for prefix, run in runs
    )


def _layers(names: Sequence[str], info: Mapping[str, Any]) -> dict[str, int | None]:
    """The number of layers of each stack; None if only some layers were requested, so that it is not known."""
    settings = info.get("settings")
    requested = settings.get("sites") if isinstance(settings, Mapping) else None
    whole = not isinstance(requested, list) or any(
        "." not in str(text) or str(text) == "final.in" for text in requested
    )
    counts: dict[str, int | None] = {}
    for site in map(parse_site, names):
        if site.layer is not None:
            counts[site.stack] = max(counts.get(site.stack) or 0, site.layer + 1)
    return counts if whole else dict.fromkeys(counts)


def _depths(names: Sequence[str], layers: Mapping[str, int | None]) -> dict[str, float]:
    out = {}
    for name in names:
        site = parse_site(name)
        count = layers.get(site.stack)
        if site.kind == "embed":
            out[name] = 0.0
        elif site.kind in ("final.in", "final"):
            out[name] = 1.0
        elif site.layer is not None and count:
            out[name] = (site.layer + 1) / count
    return out


def _nearest(stack: str, sites: Sequence[Sequence[str]], depths: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """The site of the deeper model for each site with a layer of the shallower one, given both in this order."""
    shallow, deep = (
        [name for name in names if (site := parse_site(name)).layer is not None and site.stack == stack]
        for names in sites
    )
    by_kind: dict[tuple[Any, ...], list[str]] = {}
    for name in deep:
        by_kind.setdefault(_kind(parse_site(name)), []).append(name)
    pairs: dict[str, str] = {}
    spacing = min((depths[0][name] for name in shallow), default=1.0)  # at most the distance of two layers
    for name in shallow:
        site = parse_site(name)
        choices = by_kind.get(_kind(site), []) if site.head is None and site.kind != "pattern" else []
        best = min(choices, key=lambda other: abs(depths[1][other] - depths[0][name]), default=None)
        # Farther than half a layer: the deeper run did not measure the layer that belongs here.
        if best is not None and abs(depths[1][best] - depths[0][name]) <= spacing / 2 + _SLACK:
            pairs[name] = best
    return pairs


def _kind(site: Site) -> tuple[Any, ...]:
    return site.grad, site.kind, site.name


def _text(layers: Sequence[Mapping[str, int | None]], different: set[str]) -> str:
    if different:
        counts = ", ".join(f"{layers[0][stack]} and {layers[1][stack]}" for stack in sorted(different))
        return (
            f"Layers are matched by relative depth (the models have {counts} layers): each layer of the shallower "
            "model with the nearest of the deeper one, final with final."
        )
    unknown = [which for which, counts in zip(("first", "second"), layers, strict=True) if None in counts.values()]
    apart = any(layers[0][stack] != layers[1].get(stack) for stack in layers[0] if stack in layers[1])
    if unknown and apart:
        return (
            f"Layers are matched by number: the {' and '.join(unknown)} run measured only some layers, so the depth of "
            "its model is not known."
        )
    return ""
