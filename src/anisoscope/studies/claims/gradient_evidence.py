"""The tangent test on trainings of the lab and on models given, each test made once and kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.claims.bench import Lab
from anisoscope.studies.claims.given import Given, groups_of, width_of
from anisoscope.studies.claims.looks import kept
from anisoscope.studies.claims.readings import Entry, Missing, RunView, Units, drawn, estimate
from anisoscope.studies.claims.states import states
from anisoscope.tangent import Tangent, energy, fit_bases, haar
from anisoscope.tangent.null import EMBEDDING, GRADIENTS, HIDDEN, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.tangent_test import fit_frames, tangent_test

NULLS = ("normal_control", "orientation", "coordinates", "transfer_slope", "local_test", "error_shuffle")
TOKENS = "no-sink"  # the policy of every test: first tokens and massive ones are left out
RANK = 32  # of a basis in a model given, or a quarter of its width
PUBLISHED_P = 1 / 21  # the least that 20 draws can give


def rank_of(lab: Lab) -> int:
    return int(lab.size.switches["rank"])


# --- tests --------------------------------------------------------------------------------------------------------


# Kinds of test: which gradients against which proxy.
_KINDS = {"gradients": ((HIDDEN,), "pca"), "objects": (GRADIENTS, "pca"), "concepts": ((HIDDEN,), "semi_nmf")}


def gradients_of(lab: Lab, cell: str, step: int, *, kind: str = "gradients", fitted_at: int | None = None) -> Units:
    """The test of every seed of a cell at one step; `fitted_at` takes the bases of another step."""
    return Units(tuple(_lab_test(lab, cell, seed, step, kind, fitted_at) for seed in range(lab.seeds)))


def _lab_test(lab: Lab, cell: str, seed: int, step: int, kind: str, fitted_at: int | None) -> RunView:
    gradients, proxy = _KINDS[kind]
    name = kind if fitted_at is None else f"{kind}-fitted-at-{fitted_at}"

    def make(folder: Path) -> Run:
        lab.say(f"gradients of {cell}, seed {seed}, step {step}")
        opened = lab.opened(cell, seed, step)
        fit, test = lab.batches(cell, 0), lab.batches(cell, 1)
        tangent = Tangent(proxies=(proxy,), ranks=(rank_of(lab),), nulls=NULLS)
        config: Any = opened.model.config
        loss = "next_token" if config.objective == "next" else "masked_token"
        frozen = None
        if fitted_at is not None:
            frozen = fit_frames(lab.opened(cell, seed, fitted_at), fit, tangent=tangent, seed=seed)
        return tangent_test(
            opened,
            fit=fit,
            test=test,
            loss=loss,
            tangent=tangent,
            gradients=gradients,
            frozen=frozen,
            mask=lab.data(cell, seed).mask_id,
            seed=seed,
            step=step,
            out=folder,
        )

    return lab.kept_reading(cell, seed, step, name, make)


def gradients_of_model(model: Given, fitted: Given | None = None) -> Units:
    """The test of a model given, on groups of documents that share none; `fitted` gives the bases instead of itself."""
    opened = model.open()
    fit, test = model.halves(opened)
    groups = groups_of(test)
    tangent = Tangent(ranks=(min(RANK, width_of(opened.model) // 4),), nulls=NULLS)
    frozen = None if fitted is None else fit_frames(fitted.open(), fit, tangent=tangent)
    end = "" if fitted is None else f"-fitted-at-{fitted.step}"

    def make(number: int, folder: Path) -> Run:
        model.say(f"gradients of {model.name}, group {number + 1} of {len(groups)}")
        return tangent_test(
            opened,
            fit=fit,
            test=groups[number],
            loss="next_token" if model.decoder else "masked_token",
            tangent=tangent,
            gradients=(HIDDEN,),
            frozen=frozen,
            out=folder,
        )

    places = [model.folder / f"gradients{end}-{number}" for number in range(len(groups))]
    runs = [kept(place, partial(make, number)) for number, place in enumerate(places)]
    return Units(tuple(RunView.of(run.records()) for run in runs), "groups of documents")


# --- what a test says ---------------------------------------------------------------------------------------------


def hidden(reading: RunView, metric: str, **variant: Any) -> list[Entry]:
    """The numbers of a metric for hidden gradients, layer by layer."""
    return reading.find(metric, TOKENS, gradient=HIDDEN, **variant)


def mean_of(reading: RunView, metric: str, **variant: Any) -> float:
    return fmean(entry.value for entry in hidden(reading, metric, **variant))


def enriched(*readings: RunView) -> list[bool]:
    """Of every layer and step: whether the basis beats all 20 normal controls, as published."""
    flags: list[bool] = []
    for reading in readings:
        p = {e.site: e.value for e in hidden(reading, "gradient_p", null="normal_control", rows="plain", proxy="pca")}
        ratios = hidden(reading, "tangent_normal_ratio", rows="plain", proxy="pca")
        flags += [entry.value > 1 and p[entry.site] <= PUBLISHED_P + 1e-9 for entry in ratios]
    return flags


def log_ratio(*readings: RunView) -> float:
    """Mean log of the tangent/normal ratio over layers and steps."""
    return fmean(
        math.log(max(entry.value, 1e-12))
        for reading in readings
        for entry in hidden(reading, "tangent_normal_ratio", rows="plain", proxy="pca")
    )


def log_enrichment(reading: RunView) -> float:
    entries = [
        e for e in hidden(reading, "gradient_enrichment", rows="plain", proxy="pca") if "stratum" not in e.variant
    ]
    return fmean(math.log(max(entry.value, 1e-12)) for entry in entries)


def energy_of(reading: RunView, **variant: Any) -> float:
    """Mean energy over layers: of all tokens, or of one stratum."""
    wanted = {"stratum": variant.get("stratum")}
    found = hidden(reading, "gradient_energy", proxy="pca", **{"rows": "plain", **variant})
    return fmean(e.value for e in found if "null" not in e.variant and e.variant.get("stratum") == wanted["stratum"])


def removal_wins(reading: RunView, null: str, dimension: str) -> list[bool]:
    """Of every layer: whether taking the basis out makes gradients rounder than taking a control out."""
    found = hidden(reading, "anisotropy_share", null=null, dimension=dimension, proxy="pca")
    return [entry.value > (entry.null or 0.0) for entry in found]


# Which null stands beside which gradient: a weight's gradient lies in the span of its inputs by construction.
_BESIDE = (
    *((HIDDEN, null) for null in ("normal_control", "orientation", "coordinates")),
    (WEIGHT_IN, "error_shuffle"),
    (WEIGHT_OUT, "orientation"),
    (EMBEDDING, "orientation"),
)


def objects_table(units: Units, step: int) -> list[Record]:
    """Energy of every kind of gradient, mean over places, beside the level that its null expects."""
    out = []
    for gradient, null in _BESIDE:
        for proxy in ("pca", "semi_nmf"):
            which = {"gradient": gradient, "null": null, "rows": "plain", "proxy": proxy}
            try:
                energies = estimate(partial(_mean_energy, which), units)
                level = estimate(partial(_mean_level, which), units).value
            except Missing:
                continue
            of = f"{gradient}, {proxy}, step {step}, beside {null}"
            out.append(drawn(energies, "energy_by_gradient", of=of, null=level))
    return out


def _mean_energy(which: dict[str, str], reading: RunView) -> float:
    return fmean(entry.value for entry in reading.find("gradient_energy", TOKENS, **which))


def _mean_level(which: dict[str, str], reading: RunView) -> float:
    return fmean(entry.null or 0.0 for entry in reading.find("gradient_energy", TOKENS, **which))


# --- the change of activations ------------------------------------------------------------------------------------


def change_in_basis(lab: Lab, cell: str, seed: int, steps: Sequence[int]) -> list[tuple[float, float]]:
    """Of each layer and pair of steps: the share of ‖ΔH‖² in the basis less r/d, and its p under random subspaces.

    Bases are fitted at the earlier step on one half of the windows, ΔH is of the other half.
    """
    rank = rank_of(lab)
    fit, test = lab.batches(cell, 0), lab.batches(cell, 1)
    models = [lab.model(cell, seed, step) for step in steps]
    bases = [
        {site: fit_bases(x, ("pca",), (rank,))[0] for site, x in states(model, fit, ["resid"]).items()}
        for model in models[:-1]
    ]
    rows = [states(model, test, ["resid"]) for model in models]
    found = []
    for place, fitted in enumerate(bases):
        for site, basis in fitted.items():
            change = (rows[place + 1][site] - rows[place][site]).double()  # (n, d)
            second = torch.mm(change.T, change)
            law = haar(second, basis.effective)
            inside = energy(second, basis)
            found.append((inside - law.mean, law.p_value(inside)))
    return found
