"""From the gradients of one step to records: how large, how round, and how much of them the tangent proxies hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError, InputError, unknown
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import evaluate
from anisoscope.records import Record, Site
from anisoscope.stats.blocks import Cloud
from anisoscope.stats.derived import resolve
from anisoscope.stats.moments import Moments
from anisoscope.stats.pairs import Axes
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample
from anisoscope.tangent import Basis, Tangent, energy, fit_bases, haar
from anisoscope.tracker.ranks import full

METRICS = ("spectral_anisotropy", "isoscore", "participation_ratio")  # of the gradients' own cloud


def card(name: str, meaning: str, text: str, *, high: float | None = None, paper: str = "bernas2026") -> dict[str, Any]:
    """What a run keeps of a measure that is no function of one cloud, in the form of `Metric.card`."""
    facts = {"name": name, "family": "alignment", "meaning": meaning, "text": f"{meaning}\n\n{text}", "low": 0}
    return {**facts, "high": high, "ignores": [], "needs": ["Moments"], "paper": paper, "version": 1}


CARDS = (
    card("gradient_norm", "Length of all gradient rows of the step together.", "√Σ‖g‖².", paper="anisoscope"),
    card(
        "gradient_energy",
        "Share of the gradients' squared length inside a basis fitted on activations; index is its rank.",
        "‖GQ‖²/‖G‖². The null is that of a random subspace, r/d; p is from the Beta law with its variance.",
        high=1,
    ),
    card(
        "gradient_enrichment",
        "Gradient energy inside a basis over that inside a random one of the same rank; index is the rank.",
        "E/(r/d): 1 where the basis knows nothing of the gradients.",
    ),
    card(
        "tangent_normal_ratio",
        "Gradient energy inside a basis over that inside a random one orthogonal to it; index is the rank.",
        "E(d − r)/((1 − E)r): a transform of the gradient energy, to be read beside it.",
    ),
)


@dataclass
class Bases:
    """The proxies of each site: fitted again at every probe, and kept once from early in training where asked."""

    tangent: Tangent
    seed: int = 0

    def __post_init__(self) -> None:
        self.refreshed: dict[Site, list[Basis]] = {}
        self.frozen: dict[Site, list[Basis]] = {}

    def fit(self, site: Site, cloud: Cloud, step: int) -> bool:
        """Fit on the sampled rows of a site's held-out tokens; True if this is what stays frozen."""
        x = cloud.get(Sample).x  # (n, d)
        before = {(basis.proxy, basis.rank): basis for basis in self.refreshed.get(site, [])}
        ranks = fitting_ranks(self.tangent.ranks, *x.shape)
        known = resolve(cloud, Axes)  # drift has needed them too
        self.refreshed[site] = fit_bases(
            x,
            self.tangent.proxies,
            ranks,
            seed=self.seed,
            start=before,
            moments=known.moments,
            axes=known.vectors.cpu(),
        )
        due = self.tangent.frozen_from
        freezes = due is not None and step >= due and site not in self.frozen
        if freezes:
            self.frozen[site] = self.refreshed[site]
        return freezes

    def at(self, site: Site) -> Iterable[tuple[str, Basis]]:
        for basis in self.refreshed.get(site, []):
            yield "refreshed", basis
        for basis in self.frozen.get(site, []):
            yield "frozen", basis


def fitting_ranks(ranks: Sequence[int], n: int, d: int) -> list[int]:
    """The ranks below half of the dimensions and the number of rows, or the largest such.

    >>> fitting_ranks((8, 32), 100, 40), fitting_ranks((8, 32), 100, 12)
    ([8], [5])
    """
    most = max(1, min(n - 1, (d - 1) // 2))
    return [rank for rank in ranks if rank <= most] or [most]


def gradient_records(
    site: Site, moments: Moments, metrics: Sequence[Metric], *, scale: float, make: Callable[..., Record]
) -> list[Record]:
    """The gradients' own cloud: its length (the loss scale divided out) and shape."""
    at = str(site)
    squares = float(moments.second.diagonal().sum())
    if not math.isfinite(squares):
        return [make(at, "gradient_norm", None, note="the gradients hold NaN or Inf: an overflow of the loss scale?")]
    norm = make(at, "gradient_norm", math.sqrt(max(squares, 0.0)) / scale, n=moments.n)
    shape = evaluate(Cloud({"Moments": moments}), metrics, site=at, run=norm.run, step=norm.step, errors=False)
    return [norm, *(measured.record for measured in shape)]


def alignment_records(
    site: Site, second: Tensor, n: int, bases: Iterable[tuple[str, Basis]], *, make: Callable[..., Record]
) -> list[Record]:
    """How much of the gradients, S = GᵀG, lies inside each basis, beside what a random subspace would hold."""
    out: list[Record] = []
    for state, basis in bases:
        variant = {"proxy": basis.proxy, "gradient": "hidden", "basis": state, "null": "haar"}
        same: dict[str, Any] = {"index": basis.rank, "variant": variant, "n": n}
        try:
            inside, null = energy(second, basis), haar(second, basis.effective)
        except AnisoscopeError as why:
            out.append(make(str(site), "gradient_energy", None, note=str(why), **same))
            continue
        share = basis.effective / basis.dim
        note = f"p = {null.p_value(inside):.2g} by the Beta law"
        out += [
            make(str(site), "gradient_energy", inside, null=null.mean, note=note, **same),
            make(str(site), "gradient_enrichment", inside / share, null=1.0, **same),
        ]
        if inside < 1:
            ratio = inside * (1 - share) / ((1 - inside) * share)
            out.append(make(str(site), "tangent_normal_ratio", ratio, null=1.0, **same))
    return out


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
                out[site] = Moments.of(bare_rows(full(weight.grad)))
    return out
