"""From the gradients of one step to records: how large, how round, and how much of them the tangent proxies hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from anisoscope.distributed import full_tensor
from anisoscope.errors import AnisoscopeError, InputError, unknown
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import evaluate
from anisoscope.records import Record, Site
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.moments import Moments
from anisoscope.stats.pairs import Axes
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample
from anisoscope.tangent import Tangent, chance, energy, fit_bases
from anisoscope.tangent.frame import Frame
from anisoscope.tangent.gradient_facts import HIDDEN, Level, Null
from anisoscope.tangent.gradient_records import ENERGY_NULLS, choose_nulls
from anisoscope.tangent.metric_cards import tangent_cards

METRICS = ("spectral_anisotropy", "isoscore", "participation_ratio")  # of the gradients' own cloud
CLOSED_FORM = ("orientation",)  # the null that costs nothing: a random subspace, by its exact law
_ALIGNMENT = ("gradient_energy", "gradient_enrichment", "gradient_excess", "gradient_p", "tangent_normal_ratio")
Make = Callable[..., Record]


class Bases:
    """The proxies of each site: fitted again at every probe, and kept once from early in training where asked."""

    def __init__(self, tangent: Tangent, seed: int = 0) -> None:
        self.refreshed: dict[Site, Frame] = {}
        self.frozen: dict[Site, Frame] = {}
        self.nulls = energy_nulls(tangent)
        self.seed = seed
        self._tangent = tangent

    def fit(self, site: Site, cloud: Cloud, step: int) -> bool:
        """Fit on the sampled rows of a site's held-out tokens; True if this is what stays frozen."""
        before = self.refreshed.get(site)
        self.refreshed[site] = fitted(self._tangent, cloud, before, self.seed)
        due = self._tangent.frozen_from
        freezes = due is not None and step >= due and site not in self.frozen
        if freezes:
            self.frozen[site] = self.refreshed[site]
        return freezes

    def at(self, site: Site) -> Iterator[tuple[str, Frame]]:
        """The frames of a site, by what state they are in."""
        for state, frames in (("refreshed", self.refreshed), ("frozen", self.frozen)):
            if site in frames:
                yield state, frames[site]


def fitted(tangent: Tangent, cloud: Cloud, before: Frame | None, seed: int) -> Frame:
    """The bases and axes of a cloud's sampled rows; warmed up by an earlier fit."""
    x = cloud.get(Sample).x  # (n, d)
    n, d = x.shape
    known = cloud.get(Axes)  # drift has needed them too
    moments, axes = known.moments, known.vectors.cpu()
    start = {(basis.proxy, basis.rank): basis for basis in before.bases} if before is not None else None
    ranks = fitting_ranks(tangent.ranks, n, d)
    return Frame(
        bases=tuple(fit_bases(x, tangent.proxies, ranks, seed=seed, start=start, moments=moments, axes=axes)),
        mean=moments.mean.cpu(),
        axes=axes,
        variance=known.values.cpu() / max(1, n - 1),
        coordinates=moments.scatter.diagonal().cpu() / max(1, n - 1),
        patches=None,
        n=n,
    )


def energy_nulls(tangent: Tangent) -> list[Null[Any, Any]]:
    """The nulls to ask: "all" are those that need no more than the sum GᵀG, which is what a training has."""
    known = {null.name: null for null in ENERGY_NULLS}
    chosen = choose_nulls(tangent.nulls)
    for name in chosen if tangent.nulls != "all" else ():
        if name not in known:
            raise InputError(
                f"the null {name} needs more than the sums that a training keeps; there are {', '.join(known)}: "
                "for the others test a checkpoint with `anisoscope tangent`"
            )
    return [null for name, null in known.items() if name in chosen]


def fitting_ranks(ranks: Sequence[int], n: int, d: int) -> list[int]:
    """The ranks below half of the dimensions and the number of rows, or the largest such.

    >>> fitting_ranks((8, 32), 100, 40), fitting_ranks((8, 32), 100, 12)
    ([8], [5])
    """
    most = max(1, min(n - 1, (d - 1) // 2))
    return [rank for rank in ranks if rank <= most] or [most]


def gradient_records(
    site: Site, moments: Moments, metrics: Sequence[Metric], *, scale: float, make: Make
) -> list[Record]:
    """The gradients' own cloud: its length (the loss scale divided out) and shape."""
    at = str(site)
    squares = float(moments.second.diagonal().sum())
    if not math.isfinite(squares):
        return [make(at, "gradient_norm", None, note="the gradients hold NaN or Inf: an overflow of the loss scale?")]
    norm = make(at, "gradient_norm", math.sqrt(max(squares, 0.0)) / scale, n=moments.n)
    shape = evaluate(Cloud({"Moments": moments}), metrics, site=at, run=norm.run, step=norm.step, errors=False)
    return [norm, *(measured.record for measured in shape)]


def alignment_records(site: Site, moments: Moments, bases: Bases, *, make: Make) -> list[Record]:
    """How much of the gradients lies inside each basis, beside what the nulls expect there."""
    second = moments.second.cpu()  # (d, d) S = GᵀG
    out: list[Record] = []
    for state, frame in bases.at(Site(site.kind, site.layer, stack=site.stack)):
        about = {"gradient": HIDDEN, "basis": state, "rows": "plain"}
        try:
            levels = {null.name: null(second, frame.bases, frame, bases.seed) for null in bases.nulls}
            inside = [energy(second, basis) for basis in frame.bases]
        except AnisoscopeError as why:
            out.append(make(str(site), "gradient_energy", None, variant=about, n=moments.n, note=str(why)))
            continue
        for place, basis in enumerate(frame.bases):
            same = {"index": basis.rank, "n": moments.n}
            variant = {**about, "proxy": basis.proxy}
            out += _energies(str(site), inside[place], chance(basis), partial(make, variant=variant, **same))
            for name, found in levels.items():
                told = partial(make, variant={**variant, "null": name}, **same)
                out += _level(str(site), inside[place], found[place], told)
    return out


def _energies(site: str, inside: float, share: float, make: Make) -> list[Record]:
    """E, E/(r/d), and E over its expectation in a random subspace orthogonal to the basis, (1 − E)r/(d − r)."""
    out = [
        make(site, "gradient_energy", inside, null=share),
        make(site, "gradient_enrichment", inside / share, null=1.0),
    ]
    if inside < 1:
        out.append(make(site, "tangent_normal_ratio", inside * (1 - share) / ((1 - inside) * share), null=1.0))
    return out


def _level(site: str, inside: float, level: Level, make: Make) -> list[Record]:
    if level.level is None:
        return [make(site, "gradient_excess", None, note=level.note)]
    out = [make(site, "gradient_excess", inside - level.level, null=0.0, note=level.note)]
    return out if level.p is None else [*out, make(site, "gradient_p", level.p, note=level.note)]


def gradient_cards() -> dict[str, dict[str, Any]]:
    """What a run keeps of these measures, in the form of `Metric.card`."""
    known = tangent_cards()
    like = known["gradient_energy"]
    meaning = "Length of all gradient rows of a step together."
    norm = {**like, "name": "gradient_norm", "meaning": meaning, "text": f"{meaning}\n\n√Σ‖g‖².", "high": None}
    return {"gradient_norm": norm, **{name: known[name] for name in _ALIGNMENT}}


def chosen_weights(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names; one that does not exist, or is no matrix, is refused."""
    known = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for name in names:
        if name not in known:
            raise unknown("parameter", name, known)
        if known[name].ndim != 2:
            raise InputError(f"{name} has shape {tuple(known[name].shape)}; only matrices have rows to look at")
    return {name: known[name] for name in names}


def weight_moments(weights: Mapping[str, nn.Parameter]) -> dict[Site, Moments | str]:
    """The rows of each weight's `.grad`, gathered where it is sharded; the reason where there is none."""
    out: dict[Site, Moments | str] = {}
    for name, weight in weights.items():
        site = Site("weight", name=name, grad=True)
        if weight.grad is None:
            out[site] = "the weight has no gradient; call watch after backward and before zero_grad"
        else:
            with torch.no_grad():
                out[site] = Moments.of(bare_rows(full_tensor(weight.grad)))
    return out
