"""The tangent test on lab trainings and on models of the user. Each test is made once and kept on disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.claims.achievable_gain import AchievedGain, gain_of_model
from anisoscope.studies.claims.given_models import GivenModel, groups_of, width_of
from anisoscope.studies.claims.hidden_states import states
from anisoscope.studies.claims.measurements import load_or_make
from anisoscope.studies.claims.run_view import Entry, Missing, RunView, Units, estimate, estimate_record
from anisoscope.studies.claims.subjects import Lab, LabModel, Subject
from anisoscope.studies.lab.targets import masked_token
from anisoscope.tangent import Tangent, energy, fit_bases
from anisoscope.tangent.null import EMBEDDING, GRADIENTS, HIDDEN, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.objectives import choose_objective, cross_entropy
from anisoscope.tangent.tangent_test import fit_frames, tangent_test

NULLS = ("normal_control", "orientation", "coordinates", "transfer_slope", "local_test", "error_shuffle")
TOKENS = "no-sink"  # the token policy of every test
RANK = 32  # of a basis in a model of the user, or a quarter of its width if that is less
PUBLISHED_P = 1 / 21  # the smallest p-value that 20 draws can give


def rank_of(lab: Lab) -> int:
    """Return the rank of the bases in the lab."""
    return int(lab.size.switches["rank"])


# --- tests --------------------------------------------------------------------------------------------------------


# Kinds of test: which gradients against which proxy.
_KINDS = {"gradients": ((HIDDEN,), "pca"), "objects": (GRADIENTS, "pca"), "concepts": ((HIDDEN,), "semi_nmf")}


def gradients_of(subject: Subject, fitted: Subject | None = None) -> Units:
    """Test every unit of a subject: every seed, or every group of documents.

    Args:
        subject: The model.
        fitted: The model that the bases are fitted on, the same training at another step; None for `subject` itself.
    """
    if isinstance(subject, LabModel):
        return lab_gradients(subject, fitted_at=None if fitted is None else fitted.step)
    if isinstance(subject, GivenModel) and (fitted is None or isinstance(fitted, GivenModel)):
        return _given_gradients(subject, fitted)
    raise Missing(f"No gradients of {subject.name}.")


def lab_gradients(subject: LabModel, *, kind: str = "gradients", fitted_at: int | None = None) -> Units:
    """Test every seed of a lab training; `fitted_at` takes the bases of another step."""
    lab, cell, step = subject.lab, subject.name, subject.step
    return Units(tuple(_lab_test(lab, cell, seed, step, kind, fitted_at) for seed in range(lab.seeds)))


def _lab_test(lab: Lab, cell: str, seed: int, step: int, kind: str, fitted_at: int | None) -> RunView:
    gradients, proxy = _KINDS[kind]
    name = kind if fitted_at is None else f"{kind}-fitted-at-{fitted_at}"

    def make(folder: Path) -> Run:
        lab.on_status(f"gradients of {cell}, seed {seed}, step {step}")
        opened = lab.opened(cell, seed, step)
        fit, test = lab_halves(lab, cell, seed)
        tangent = Tangent(proxies=(proxy,), ranks=(rank_of(lab),), nulls=NULLS)
        frozen = None
        if fitted_at is not None:
            frozen = fit_frames(lab.opened(cell, seed, fitted_at), fit, tangent=tangent, seed=seed)
        return tangent_test(
            opened,
            fit=fit,
            test=test,
            loss=cross_entropy,
            tangent=tangent,
            gradients=gradients,
            frozen=frozen,
            seed=seed,
            step=step,
            out=folder,
        )

    return lab.stored_view(cell, seed, step, name, make)


def lab_halves(lab: Lab, cell: str, seed: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Return two halves of the held-out windows; a masked model gets the masks of its training, with labels."""
    halves = lab.batches(cell, 0), lab.batches(cell, 1)
    recipe, model = (getattr(lab.trained(cell, seed).experiment, part) for part in ("recipe", "model"))
    if model.objective == "next":
        return halves
    mask = lab.data(cell, seed).mask_id
    fit, test = (
        [
            masked_token(batch["input_ids"], mask, recipe.masking, seed, half, number)
            for number, batch in enumerate(each)
        ]
        for half, each in enumerate(halves)
    )
    return fit, test


def gains_of(subject: Subject) -> list[AchievedGain]:
    """Return the achieved gain in isotropy of every unit of a subject (T2): every seed, or every group of documents."""
    if isinstance(subject, LabModel):
        lab, cell = subject.lab, subject.name
        gains = []
        for seed in lab.seeds_of(cell):
            lab.on_status(f"removed directions of {cell}, seed {seed}")
            opened = lab.opened(cell, seed, subject.step)
            objective = choose_objective(cross_entropy, opened.model)
            gains.append(gain_of_model(opened, objective, *lab_halves(lab, cell, seed), rank_of(lab), seed=seed))
        return gains
    if isinstance(subject, GivenModel):
        opened = subject.open()
        fit, test = subject.halves(opened)
        loss = "next_token" if subject.decoder else "masked_token"
        mask = getattr(opened.processor, "mask_token_id", None)
        objective = choose_objective(loss, opened.model, mask=mask)
        rank = min(RANK, width_of(opened.model) // 4)
        return [gain_of_model(opened, objective, fit, group, rank) for group in groups_of(test)]
    raise Missing(f"No gradients of {subject.name}.")


def _given_gradients(model: GivenModel, fitted: GivenModel | None) -> Units:
    opened = model.open()
    fit, test = model.halves(opened)
    groups = groups_of(test)
    tangent = Tangent(ranks=(min(RANK, width_of(opened.model) // 4),), nulls=NULLS)
    frozen = None if fitted is None else fit_frames(fitted.open(), fit, tangent=tangent)
    end = "" if fitted is None else f"-fitted-at-{fitted.step}"

    def make(number: int, folder: Path) -> Run:
        model.on_status(f"gradients of {model.name}, group {number + 1} of {len(groups)}")
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

    folders = [model.folder / f"gradients{end}-{number}" for number in range(len(groups))]
    runs = [load_or_make(folder, partial(make, number)) for number, folder in enumerate(folders)]
    return Units(tuple(RunView.of(run.records()) for run in runs), "groups of documents")


# --- numbers of a test --------------------------------------------------------------------------------------------


def hidden(view: RunView, metric: str, **variant: Any) -> list[Entry]:
    """Return the numbers of a metric for hidden gradients, in the order of the layers, without the last layer.

    The gradient of the last state before the final norm is orthogonal to that state by construction.
    """
    entries = view.find(metric, TOKENS, gradient=HIDDEN, **variant)
    last = max(entry.site.layer or 0 for entry in entries)
    return [entry for entry in entries if (entry.site.layer or 0) < last or last == 0]


def mean_of(view: RunView, metric: str, **variant: Any) -> float:
    """Return the mean of a metric over layers."""
    return fmean(entry.value for entry in hidden(view, metric, **variant))


def enriched(*views: RunView) -> list[bool]:
    """For each layer and step: whether the basis beats all 20 normal controls, as published."""
    flags: list[bool] = []
    for view in views:
        p = {e.site: e.value for e in hidden(view, "gradient_p", null="normal_control", rows="plain", proxy="pca")}
        ratios = hidden(view, "tangent_normal_ratio", rows="plain", proxy="pca")
        flags += [entry.value > 1 and p[entry.site] <= PUBLISHED_P + 1e-9 for entry in ratios]
    return flags


def log_ratio(*views: RunView) -> float:
    """Return the mean log of the tangent/normal ratio over layers and steps."""
    return fmean(
        math.log(max(entry.value, 1e-12))
        for view in views
        for entry in hidden(view, "tangent_normal_ratio", rows="plain", proxy="pca")
    )


def log_enrichment(view: RunView, rows: str = "plain") -> float:
    """Return the mean log of the gradient enrichment over layers, of plain gradients or of unit length."""
    entries = [e for e in hidden(view, "gradient_enrichment", rows=rows, proxy="pca") if "stratum" not in e.variant]
    return fmean(math.log(max(entry.value, 1e-12)) for entry in entries)


def energy_of(view: RunView, **variant: Any) -> float:
    """Return the mean gradient energy over layers, of all tokens or of one stratum."""
    entries = hidden(view, "gradient_energy", proxy="pca", **{"rows": "plain", **variant})
    stratum = variant.get("stratum")
    return fmean(e.value for e in entries if "null" not in e.variant and e.variant.get("stratum") == stratum)


def removal_wins(view: RunView) -> list[bool]:
    """For each layer: whether removing the basis makes gradients more isotropic, and more so than a normal control."""
    entries = hidden(view, "anisotropy_share", null="normal_control", dimension="ambient", proxy="pca")
    return [entry.value > max(0.0, entry.null or 0.0) for entry in entries]


# The null of each gradient. A weight's gradient lies in the span of its inputs by construction.
_NULL_OF = (
    *((HIDDEN, null) for null in ("normal_control", "orientation", "coordinates")),
    (WEIGHT_IN, "error_shuffle"),
    (WEIGHT_OUT, "orientation"),
    (EMBEDDING, "orientation"),
)


def objects_table(units: Units, step: int) -> list[Record]:
    """Return the energy of every kind of gradient, mean over sites, with the value that its null expects."""
    records = []
    for gradient, null in _NULL_OF:
        for proxy in ("pca", "semi_nmf"):
            which = {"gradient": gradient, "null": null, "rows": "plain", "proxy": proxy}
            try:
                energies = estimate(partial(_mean_energy, which), units)
                level = estimate(partial(_mean_null, which), units).value
            except Missing:
                continue
            of = f"{gradient}, {proxy}, step {step}, against {null}"
            records.append(estimate_record(energies, "energy_by_gradient", of=of, null=level))
    return records


def _mean_energy(which: dict[str, str], view: RunView) -> float:
    return fmean(entry.value for entry in view.find("gradient_energy", TOKENS, **which))


def _mean_null(which: dict[str, str], view: RunView) -> float:
    return fmean(entry.null or 0.0 for entry in view.find("gradient_energy", TOKENS, **which))


# --- the change of activations ------------------------------------------------------------------------------------


def change_in_basis(lab: Lab, cell: str, seed: int, steps: Sequence[int]) -> list[float]:
    """For each layer and pair of steps: the share of ‖ΔH‖² in the basis minus the activations' variance share in it.

    Any change of activations that have a spectrum lies in their leading directions more than r/d does, so their own
    variance is the comparison. Bases are fitted at the earlier step on one half of the windows; ΔH and the variance
    are measured on the other half. The mean change, a drift of all states, is left out as in the variance.
    """
    fit, test = lab.batches(cell, 0), lab.batches(cell, 1)
    models = [lab.model(cell, seed, step) for step in steps]
    rank, rows = rank_of(lab), [states(model, test, ["resid"]) for model in models]
    results = []
    for index, model in enumerate(models[:-1]):
        for site, x in states(model, fit, ["resid"]).items():
            basis = fit_bases(x, ("pca",), (rank,))[0]
            before = rows[index][site].double()  # (n, d)
            change = rows[index + 1][site].double() - before
            results.append(energy(torch.cov(change.T), basis) - energy(torch.cov(before.T), basis))
    return results
