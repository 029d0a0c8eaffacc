"""The tangent test of a model or checkpoint: bases from some documents, true gradients from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.data.inputs import device_of, first_item
from anisoscope.errors import InputError, unknown
from anisoscope.hooks import expand, find_layout
from anisoscope.hooks.backward import differentiable
from anisoscope.measurement.request import (
    FIT_OPTIONS,
    TANGENT_DEFAULTS,
    TANGENT_HELP,
    TANGENT_OPTIONS,
    Request,
    accepts,
)
from anisoscope.measurement.run_output import open_run, require_usable, run_info
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
from anisoscope.tangent.splits import Side, make_side, make_sides
from anisoscope.tangent.tangent_plan import Decode, Progress, TangentPlan, site_groups
from anisoscope.tangent.tangent_request import (
    digest_of_counts,
    opening,
    read_sides,
    require_two_sides,
    tangent_request,
    tangent_settings,
)

BasesBySite = Mapping[str, SiteBases]


@accepts(*TANGENT_OPTIONS, defaults=TANGENT_DEFAULTS, help=TANGENT_HELP)
def tangent_test(
    model: nn.Module | str | Path | Opened,
    *,
    fit: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    loss: str | Loss | None = None,
    tangent: Tangent | None = None,
    gradients: Sequence[str] = GRADIENTS,
    frozen: BasesBySite | None = None,
    others: Mapping[str, BasesBySite | str | Path] | None = None,
    earlier: nn.Module | str | Path | Opened | None = None,
    counts: Mapping[int, int] | None = None,
    balance: int | None = None,
    sinks: bool = False,
    step: int = 0,
    command: str | None = None,
    progress: Progress | None = None,
    decode: Decode | None = None,
    mask: int | None = None,
    **options: Any,
) -> Run:
    """Test whether directions fitted on activations carry the true gradient of the loss.

    Bases are fitted on `fit` and tested with gradients on `test`, which share no document. A model by name takes `text`
    instead, and splits it.

    Args:
        model: A module, a folder, a hub id or the result of `open_model`, with its output head.
        fit: Batches of documents to fit on.
        test: Batches of other documents to take gradients on.
        loss: "next_token", "masked_token", or a function of the model's output and the labels. By default the loss
            that the model's head was made for.
        tangent: Proxies, ranks and nulls.
        gradients: Kinds of gradients: "hidden", "weight_in", "weight_out", "embedding".
        frozen: Bases of an earlier step from `fit_frames`, tested instead of bases fitted now.
        others: Bases to compare with, or models to fit them on, such as {"step_0": "./init", "other_run": bases}.
        earlier: The same model at an earlier step: how far did its activations move along the bases since?
        counts: How often each token id occurs; by default the tokens of the test are counted.
        balance: The most occurrences of one token type in the fit.
        sinks: Count first tokens of windows and massive tokens too.
        step: The training step of the records.
        command: The command line, for the run's information.
        progress: Called with the number of tokens after every batch.
        decode: From token ids to text; by default the tokenizer of an opened model.
        mask: The id of the mask token; by default that of the tokenizer.
        {options}

    Returns:
        A run with the energies, all nulls, and p- and q-values. Without `out` it lives in a temporary folder, as long
        as the returned object. With `out`, a complete test of a model by name is returned as it is; one that was
        interrupted is computed again.

    Raises:
        InputError: If a name is unknown, if a window or document is in both `fit` and `test`, or if there are too few
            tokens for both.
        StoreError: `out` holds a run of another request. Pass `overwrite=True` to replace it.

    >>> run = tangent_test("./smollm", text="corpus.txt", out="runs/tangent")    # doctest: +SKIP
    """
    request = tangent_request(options)
    tangent = tangent or Tangent()
    _require_known(gradients)
    nulls = choose_nulls(tangent.nulls)
    require_two_sides(request, fit, test)
    own = {
        "proxies": [named(proxy)[0] for proxy in tangent.proxies],
        "ranks": list(tangent.ranks),
        "nulls": list(nulls),
        "gradients": list(gradients),
        "loss": loss,
        "others": {name: other if isinstance(other, str | Path) else "bases" for name, other in (others or {}).items()},
        "earlier": earlier,
        "counts": digest_of_counts(counts),
        "balance": balance,
        "sinks": sinks,
        "step": step,
        "mask": mask,
    }
    objects = [loss, earlier, *tangent.proxies, *(others or {}).values()]  # a name says what it is, an object does not
    named_only = isinstance(model, str | Path) and all(isinstance(each, str | Path | None) for each in objects)
    settings = tangent_settings(request, model, own)
    writing: dict[str, Any] = {
        "overwrite": request.output.overwrite,
        "resumable": named_only and fit is None and frozen is None,
    }
    require_usable(request.output.out, settings, **writing, later=("weights",))
    opened, module = _open(model, request.opening())
    settings["weights"] = None if opened is None else opened.info["digest"]
    facts = {
        "kind": "tangent",
        "model": opened.info if opened is not None else {"architecture": type(module).__name__},
        "seed": request.statistics.seed,
        "complete": False,
        "settings": settings,
    }
    info = {**run_info(facts, []), "metrics": tangent_cards()}
    if fit is None or test is None:
        fit, test = read_sides(opened, request)
    seed = request.statistics.seed
    fit_side, test_side = make_sides(fit, test, sinks=sinks, seed=seed)
    plan = TangentPlan(
        module,
        find_layout(module, first_item(fit_side.batches[0], device_of(module))),
        choose_objective(loss, module, mask=_mask_id(opened) if mask is None else mask, seed=seed),
        tangent,
        tuple(gradients),
        request.statistics.sample or TANGENT_DEFAULTS["sample"],
        seed,
        nulls=tuple(nulls),
        counts=counts,
        balance=balance,
        earlier=None if earlier is None else _open(earlier, opening(request))[1],
        decode=decode or _decoder(opened),
        progress=progress,
    )
    with open_run(request.output.out, info, command=command, **writing) as run:  # a request that fails leaves no run
        if run.info["complete"]:
            return run
        if not run.is_empty:
            run.rewind(0)  # records of a process that was killed while it wrote them
        compared = {
            name: _fit_other(plan, other, fit_side, request) if isinstance(other, str | Path) else other
            for name, other in (others or {}).items()
        }
        records, concepts = _tested(plan, fit_side, test_side, request.sites.sites, frozen or {}, compared)
        labels: dict[str, Any] = {"run": run.name, "step": step, "tokens": "all" if sinks else "no-sink"}
        run.append([replace(record, **labels) for record in with_q(records)])
        run.update_info(**_information(plan, fit_side, test_side), concepts=concepts, complete=True)
        return run


@accepts(*FIT_OPTIONS, defaults=TANGENT_DEFAULTS, help=TANGENT_HELP)
def fit_frames(
    model: nn.Module | str | Path | Opened,
    fit: Iterable[Any],
    *,
    tangent: Tangent | None = None,
    sinks: bool = False,
    **options: Any,
) -> dict[str, SiteBases]:
    """Fit the bases of a model's sites, to be tested later as `frozen=` or compared as `others=` of `tangent_test`.

    Args:
        model: A module, a folder, a hub id or the result of `open_model`.
        fit: Batches to fit on.
        tangent: Proxies and ranks.
        sinks: Count first tokens of windows and massive tokens too.
        {options}

    Returns:
        The bases of each site, by its name.

    Example: `tangent_test(later, fit, test, frozen=fit_frames(early, fit))`.
    """
    request = tangent_request(options)
    side = make_side(fit, "fit", sinks=sinks, seed=request.statistics.seed)
    return _fitted(_open(model, request.opening())[1], side, tangent or Tangent(), request)


def _fit_other(plan: TangentPlan, model: str | Path, side: Side, request: Request) -> dict[str, SiteBases]:
    """The bases of another model on the same fit tokens, which may have other massive tokens."""
    again = Side(side.batches, sinks=side.sinks, numbered=side.numbered, seed=side.seed)
    return _fitted(_open(model, opening(request))[1], again, plan.tangent, request)


def _fitted(module: nn.Module, side: Side, tangent: Tangent, request: Request) -> dict[str, SiteBases]:
    layout = find_layout(module, first_item(side.batches[0], device_of(module)))
    sample = request.statistics.sample or TANGENT_DEFAULTS["sample"]
    plan = TangentPlan(module, layout, no_objective(), tangent, (HIDDEN,), sample, request.statistics.seed)
    bases: dict[str, SiteBases] = {}
    with differentiable(module):
        for group in site_groups(plan, expand(layout, request.sites.sites)):
            bases.update(fit_pass(plan, group, side).bases)
    return bases


def _tested(
    plan: TangentPlan,
    fit: Side,
    test: Side,
    sites: Sequence[str],
    frozen: BasesBySite,
    others: Mapping[str, BasesBySite],
) -> tuple[list[Record], dict[str, Any]]:
    """The records of all sites, group by group, and the concepts in words."""
    records: list[Record] = []
    concepts: dict[str, Any] = {}
    with differentiable(plan.model):
        for group in site_groups(plan, expand(plan.layout, sites)):
            result = fit_pass(plan, group, fit)
            concepts.update(result.concepts)
            records += result.records
            bases = {**result.bases, **frozen}
            for case in gradient_pass(plan, group, test, bases):
                compared = _with_other_bases(plan, case, bases, frozen, others)
                records += tangent_records(compared, [*plan.nulls])
            if plan.earlier is not None:
                records += displacement_pass(plan, group, test, bases)
    return records, concepts


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


def _information(plan: TangentPlan, fit: Side, test: Side) -> dict[str, Any]:
    """What the run records about the test."""
    return {
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
    }
