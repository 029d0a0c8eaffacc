"""The tangent test of a model or checkpoint: bases from some documents, true gradients from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.capture import expand, find_layout
from anisoscope.capture.backward import differentiable
from anisoscope.data.inputs import device_of, first_item
from anisoscope.errors import InputError, unknown
from anisoscope.measurement.run_output import open_run, run_info
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models.open import Opened, open_model
from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.tangent import Tangent
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.displacement import displacement_pass
from anisoscope.tangent.fit_pass import fit_pass
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradient_pass import gradient_pass
from anisoscope.tangent.gradient_records import choose_nulls, tangent_records, with_q
from anisoscope.tangent.metric_cards import tangent_cards
from anisoscope.tangent.null import GRADIENTS, HIDDEN
from anisoscope.tangent.objectives import Loss, choose_objective, no_objective
from anisoscope.tangent.proxies import named
from anisoscope.tangent.site_bases import SiteBases
from anisoscope.tangent.splits import Side, make_side, require_apart
from anisoscope.tangent.tangent_plan import Decode, Progress, TangentPlan, site_groups

SAMPLE = 8192  # fit tokens whose activations are kept
BasesBySite = Mapping[str, SiteBases]


def tangent_test(
    model: nn.Module | str | Path | Opened,
    *,
    fit: Iterable[Any],
    test: Iterable[Any],
    loss: str | Loss | None = None,
    tangent: Tangent | None = None,
    gradients: Sequence[str] = GRADIENTS,
    sites: Sequence[str] = ("resid",),
    frozen: BasesBySite | None = None,
    others: Mapping[str, BasesBySite] | None = None,
    earlier: nn.Module | str | Path | Opened | None = None,
    counts: Mapping[int, int] | None = None,
    balance: int | None = None,
    sinks: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
    step: int = 0,
    out: str | Path | None = None,
    command: str | None = None,
    progress: Progress | None = None,
    decode: Decode | None = None,
    mask: int | None = None,
    opening: Mapping[str, Any] | None = None,
) -> Run:
    """Test whether directions fitted on activations carry the true gradients of other tokens.

    Args:
        model: A module, a folder, a hub id or the result of `open_model`; it needs its output head.
        fit: Batches to fit bases on.
        test: Batches of other documents to take gradients on.
        loss: "next_token", "masked_token", or a function of the model's output and the labels. By default the loss
            that the model's head was made for.
        tangent: Proxies, ranks and nulls.
        gradients: Kinds of gradients: "hidden", "weight_in", "weight_out", "embedding".
        sites: Sites of the stream, such as "resid" or "resid.3".
        frozen: Bases of an earlier step from `fit_frames`, tested instead of bases fitted now.
        others: Bases to compare with, such as {"step_0": bases, "other_run": bases}.
        earlier: The same model at an earlier step: how far did its activations move along the bases since?
        counts: How often each token id occurs; by default the tokens of the test are counted.
        balance: The most occurrences of one token type in the fit.
        sinks: Count first tokens of windows and massive tokens too.
        sample: The number of fit tokens whose activations are kept.
        seed: The seed of every draw.
        step: The training step of the records.
        out: A folder for the run; by default the run is in memory.
        command: The command line, for the run's information.
        progress: Called with the number of tokens after every batch.
        decode: From token ids to text; by default the tokenizer of an opened model.
        mask: The id of the mask token; by default that of the tokenizer.
        opening: Options of `open_model` if `model` is a path or a hub id.

    Returns:
        A run with the energies, all nulls, and p- and q-values.

    Raises:
        InputError: If a name is unknown, or if a window or document is in both `fit` and `test`.
    """
    tangent = tangent or Tangent()
    _require_known(gradients)
    nulls = choose_nulls(tangent.nulls)
    opened, module = _open(model, opening)
    fit_side = make_side(fit, "fit", sinks=sinks, seed=seed)
    test_side = make_side(test, "test", sinks=sinks, seed=seed)
    require_apart(fit_side, test_side)
    plan = TangentPlan(
        module,
        find_layout(module, first_item(fit_side.batches[0], device_of(module))),
        choose_objective(loss, module, mask=_mask_id(opened) if mask is None else mask, seed=seed),
        tangent,
        tuple(gradients),
        sample,
        seed,
        nulls=tuple(nulls),
        counts=counts,
        balance=balance,
        earlier=None if earlier is None else _open(earlier, opening)[1],
        decode=decode or _decoder(opened),
        progress=progress,
    )
    records: list[Record] = []
    concepts: dict[str, Any] = {}
    with differentiable(module):
        for group in site_groups(plan, expand(plan.layout, sites)):
            result = fit_pass(plan, group, fit_side)
            concepts.update(result.concepts)
            records += result.records
            bases = {**result.bases, **(frozen or {})}
            for case in gradient_pass(plan, group, test_side, bases):
                compared = _with_other_bases(plan, case, bases, frozen or {}, others or {})
                records += tangent_records(compared, nulls)
            if plan.earlier is not None:
                records += displacement_pass(plan, group, test_side, bases)
    info = run_info(_information(plan, opened, fit_side, test_side), [])
    run = open_run(out, {**info, "metrics": tangent_cards(), "concepts": concepts}, command=command, resumable=False)
    labels: dict[str, Any] = {"run": run.name, "step": step, "tokens": "all" if sinks else "no-sink"}
    run.append([replace(record, **labels) for record in with_q(records)])
    return run


def fit_frames(
    model: nn.Module | str | Path | Opened,
    fit: Iterable[Any],
    *,
    tangent: Tangent | None = None,
    sites: Sequence[str] = ("resid",),
    sinks: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
    opening: Mapping[str, Any] | None = None,
) -> dict[str, SiteBases]:
    """Fit the bases of a model's sites, to be tested later as `frozen=` or compared as `others=` of `tangent_test`.

    Args:
        model: A module, a folder, a hub id or the result of `open_model`.
        fit: Batches to fit on.
        tangent: Proxies and ranks.
        sites: Sites of the stream.
        sinks: Count first tokens of windows and massive tokens too.
        sample: The number of fit tokens whose activations are kept.
        seed: The seed of every draw.
        opening: Options of `open_model` if `model` is a path or a hub id.

    Returns:
        The bases of each site, by its name.
    """
    _, module = _open(model, opening)
    side = make_side(fit, "fit", sinks=sinks, seed=seed)
    layout = find_layout(module, first_item(side.batches[0], device_of(module)))
    plan = TangentPlan(module, layout, no_objective(), tangent or Tangent(), (HIDDEN,), sample, seed)
    bases: dict[str, SiteBases] = {}
    with differentiable(module):
        for group in site_groups(plan, expand(layout, sites)):
            bases.update(fit_pass(plan, group, side).bases)
    return bases


def _require_known(gradients: Sequence[str]) -> None:
    for kind in gradients:
        if kind not in GRADIENTS:
            raise unknown("gradient", kind, GRADIENTS)


def _open(model: Any, opening: Mapping[str, Any] | None) -> tuple[Opened | None, nn.Module]:
    """A model with its output head, opened if it is a path or a hub id."""
    if isinstance(model, str | Path):
        model = open_model(model, head=True, **(opening or {}))
    if isinstance(model, Opened):
        return model, model.model
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{type(model).__name__} is not a model. Pass a module, a folder, a hub id or the result of open_model."
        )
    return None, model


def _decoder(opened: Opened | None) -> Decode | None:
    processor: Any = None if opened is None else opened.processor
    return None if processor is None else lambda ids: str(processor.decode(list(ids)))


def _mask_id(opened: Opened | None) -> int | None:
    return None if opened is None else getattr(opened.processor, "mask_token_id", None)


def _with_other_bases(
    plan: TangentPlan, case: GradientCase, bases: BasesBySite, frozen: BasesBySite, others: Mapping[str, BasesBySite]
) -> GradientCase:
    """The case with the state of its bases, and with bases of another layer, of step 0 and of another run."""
    name = case.site.removeprefix("grad.")
    state = "frozen" if name in frozen else "refreshed"
    compared: dict[str, tuple[Basis, ...]] = {}
    if case.gradient == HIDDEN:
        compared = {other: by_site[name].bases for other, by_site in others.items() if name in by_site}
        layers = _layers_of_stack(bases, name)
        if name in layers and len(layers) > 1:
            far = layers[(layers.index(name) + len(layers) // 2) % len(layers)]
            compared["other_layer"] = bases[far].bases
    usable = {other: some for other, some in compared.items() if other in plan.nulls and some[0].dim == case.fitted.dim}
    return replace(case, fitted=replace(case.fitted, others=usable), basis=state)


def _layers_of_stack(bases: BasesBySite, name: str) -> list[str]:
    """The residual sites of the stack that a site is in."""
    kind = name.rpartition(".")[0]
    if kind not in ("resid", "enc.resid", "dec.resid"):
        return []
    return [other for other in bases if other.rpartition(".")[0] == kind]


def _information(plan: TangentPlan, opened: Opened | None, fit: Side, test: Side) -> dict[str, Any]:
    """What the run records about the test."""
    return {
        "kind": "tangent",
        "model": opened.info if opened is not None else {"architecture": type(plan.model).__name__},
        "tangent": {
            "proxies": [named(proxy)[0] for proxy in plan.tangent.proxies],
            "ranks": list(plan.tangent.ranks),
            "nulls": list(plan.nulls),
            "gradients": list(plan.gradients),
            "loss": plan.objective.name,
            "fit tokens": len(fit),
            "test tokens": len(test),
            "balance": plan.balance,
        },
        "token_policy": {"first token": test.sinks, "massive": None if test.sinks else f"> {MASSIVE:g} medians"},
        "unit": test.unit,
        "seed": plan.seed,
    }
