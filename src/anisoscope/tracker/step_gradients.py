"""Records of the gradients of one training step: their length, their shape, and their share inside the bases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from anisoscope.tangent import Tangent, energy, fit_bases
from anisoscope.tangent.alignment import MakeRecord, energy_records, excess_records, expected_ratio
from anisoscope.tangent.gradient_records import ENERGY_NULLS, choose_nulls
from anisoscope.tangent.metric_cards import tangent_cards
from anisoscope.tangent.null import HIDDEN, Null
from anisoscope.tangent.site_bases import SiteBases

METRICS = ("spectral_anisotropy", "isoscore", "participation_ratio")  # of the gradients themselves
CLOSED_FORM = ("orientation",)  # the null without draws: a random subspace, by its exact distribution
_ALIGNMENT = ("gradient_energy", "gradient_enrichment", "gradient_excess", "gradient_p", "tangent_normal_ratio")


class Bases:
    """The bases of each site: refreshed at every probe, and frozen early in training if `Tangent` asks for it."""

    def __init__(self, tangent: Tangent, seed: int = 0) -> None:
        self.refreshed: dict[Site, SiteBases] = {}
        self.frozen: dict[Site, SiteBases] = {}
        self.nulls = energy_nulls(tangent)
        self.seed = seed
        self._tangent = tangent

    def fit(self, site: Site, cloud: Cloud, step: int) -> bool:
        """Fit the bases of a site on the sampled rows of its held-out tokens.

        Returns:
            True if these bases are now frozen.
        """
        self.refreshed[site] = fit_on_sample(self._tangent, cloud, self.refreshed.get(site), self.seed)
        due = self._tangent.frozen_from
        freezes = due is not None and step >= due and site not in self.frozen
        if freezes:
            self.frozen[site] = self.refreshed[site]
        return freezes

    def at(self, site: Site) -> Iterator[tuple[str, SiteBases]]:
        """The bases of a site, each with its state: "refreshed" or "frozen"."""
        for state, by_site in (("refreshed", self.refreshed), ("frozen", self.frozen)):
            if site in by_site:
                yield state, by_site[site]


def fit_on_sample(tangent: Tangent, cloud: Cloud, before: SiteBases | None, seed: int) -> SiteBases:
    """Fit bases on the sampled rows of a cloud; `before` is the previous fit, as a warm start."""
    x = cloud.get(Sample).x  # (n, d)
    n, d = x.shape
    principal = cloud.get(Axes)  # the drift metrics need them too
    axes = principal.vectors.cpu()
    start = None if before is None else before.by_rank
    ranks = fitting_ranks(tangent.ranks, n, d)
    bases = fit_bases(x, tangent.proxies, ranks, seed=seed, start=start, moments=principal.moments, axes=axes)
    return SiteBases.of(bases, principal.moments, axes, principal.values.cpu() / max(1, n - 1))


def energy_nulls(tangent: Tangent) -> list[Null[Any, Any]]:
    """The nulls of a training step; "all" are those that need only the sum GᵀG, which is all that is kept.

    Raises:
        InputError: If a null needs more than GᵀG.
    """
    known = {null.name: null for null in ENERGY_NULLS}
    chosen = choose_nulls(tangent.nulls)
    for name in chosen if tangent.nulls != "all" else ():
        if name not in known:
            raise InputError(
                f"The null {name} needs more than the sums kept during training. Use {', '.join(known)}, or test a "
                "checkpoint with `anisoscope tangent`."
            )
    return [null for name, null in known.items() if name in chosen]


def fitting_ranks(ranks: Sequence[int], n: int, d: int) -> list[int]:
    """The ranks below half of the dimensions and below the number of rows, or the largest such rank.

    >>> fitting_ranks((8, 32), 100, 40), fitting_ranks((8, 32), 100, 12)
    ([8], [5])
    """
    most = max(1, min(n - 1, (d - 1) // 2))
    return [rank for rank in ranks if rank <= most] or [most]


def gradient_records(
    site: Site, moments: Moments, metrics: Sequence[Metric], *, scale: float, make: MakeRecord
) -> list[Record]:
    """The length (divided by the loss scale) and the shape of the gradients themselves."""
    name = str(site)
    squares = float(moments.second.diagonal().sum())
    if not math.isfinite(squares):
        return [make(name, "gradient_norm", None, note="the gradients hold NaN or Inf: did the loss scale overflow?")]
    norm = make(name, "gradient_norm", math.sqrt(max(squares, 0.0)) / scale, n=moments.n)
    shape = evaluate(Cloud({"Moments": moments}), metrics, site=name, run=norm.run, step=norm.step, errors=False)
    return [norm, *(result.record for result in shape)]


def alignment_records(site: Site, moments: Moments, bases: Bases, *, make: MakeRecord) -> list[Record]:
    """How much of the gradients lies inside each basis, next to the levels of the nulls."""
    second = moments.second.cpu()  # (d, d) S = GᵀG
    out: list[Record] = []
    for state, fitted in bases.at(Site(site.kind, site.layer, stack=site.stack)):
        common = {"gradient": HIDDEN, "basis": state, "rows": "plain"}
        try:
            levels = {null.name: null(second, fitted.bases, fitted, bases.seed) for null in bases.nulls}
            energies = [energy(second, basis) for basis in fitted.bases]
        except AnisoscopeError as reason:
            out.append(make(str(site), "gradient_energy", None, variant=common, n=moments.n, note=str(reason)))
            continue
        for i, basis in enumerate(fitted.bases):
            variant = {**common, "proxy": basis.proxy}
            make_here = partial(make, str(site), index=basis.rank, n=moments.n)
            make_energy = partial(make_here, variant=variant)
            out += energy_records(make_energy, basis, energies[i])
            out += expected_ratio(make_energy, energies[i], basis)
            for name, of_bases in levels.items():
                make_excess = partial(make_here, variant={**variant, "null": name})
                out += excess_records(make_excess, energies[i], of_bases[i])
    return out


def gradient_cards() -> dict[str, dict[str, Any]]:
    """The descriptions of these metrics for a run, in the form of `Metric.card`."""
    known = tangent_cards()
    meaning = "Length of all gradient rows of a step together."
    norm = {
        **known["gradient_energy"],
        "name": "gradient_norm",
        "meaning": meaning,
        "text": f"{meaning}\n\n√Σ‖g‖².",
        "high": None,
    }
    return {"gradient_norm": norm, **{name: known[name] for name in _ALIGNMENT}}


def chosen_weights(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters with these names.

    Raises:
        InputError: If a parameter does not exist or is not a matrix.
    """
    known = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for name in names:
        if name not in known:
            raise unknown("parameter", name, known)
        if known[name].ndim != 2:
            raise InputError(f"{name} has shape {tuple(known[name].shape)}. Only matrices have rows to measure.")
    return {name: known[name] for name in names}


def weight_moments(weights: Mapping[str, nn.Parameter]) -> dict[Site, Moments | str]:
    """The moments of the rows of each weight's `.grad`, gathered if it is sharded; the reason if it has none."""
    out: dict[Site, Moments | str] = {}
    for name, weight in weights.items():
        site = Site("weight", name=name, grad=True)
        if weight.grad is None:
            out[site] = "the weight has no gradient; call watch after backward and before zero_grad"
        else:
            with torch.no_grad():
                out[site] = Moments.of(bare_rows(full_tensor(weight.grad)))
    return out
