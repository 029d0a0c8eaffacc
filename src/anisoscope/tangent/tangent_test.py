"""The tangent test on a finished model or checkpoint: bases from some documents, true gradients from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.capture import expand, find_layout
from anisoscope.capture.backward import differentiable
from anisoscope.data.inputs import device_of, first_item
from anisoscope.errors import InputError, unknown
from anisoscope.measurement.run_output import create_run, run_info
from anisoscope.models.open import Opened, open_model
from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.tangent import Tangent
from anisoscope.tangent.displacement import displacement_records
from anisoscope.tangent.fit_pass import MASSIVE, Decode, fit_pass
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradient_pass import displacements, gradient_pass
from anisoscope.tangent.gradient_records import choose_nulls, tangent_records, with_q
from anisoscope.tangent.metric_cards import tangent_cards
from anisoscope.tangent.null import GRADIENTS, HIDDEN
from anisoscope.tangent.objectives import Loss, Objective, choose_objective
from anisoscope.tangent.proxies import named
from anisoscope.tangent.site_bases import SiteBases
from anisoscope.tangent.splits import Side, make_side, require_apart
from anisoscope.tangent.tangent_plan import TangentPlan, groups

SAMPLE = 8192  # fit tokens whose activations are kept
Frames = Mapping[str, SiteBases]
Progress = Callable[[int], None]


def tangent_test(
    model: nn.Module | str | Path | Opened,
    *,
    fit: Iterable[Any],
    test: Iterable[Any],
    loss: str | Loss | None = None,
    tangent: Tangent | None = None,
    gradients: Sequence[str] = GRADIENTS,
    sites: Sequence[str] = ("resid",),
    frozen: Frames | None = None,
    others: Mapping[str, Frames] | None = None,
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
    """Do directions fitted on the activations of `fit` carry the true gradients on `test`? Every null, as a run.

    `fit` and `test` are batches of different documents (the same window, or document id, raises). `loss` is
    "next_token", "masked_token" or a function of what the model returns and the labels. `frozen` are frames of an
    earlier step (`fit_frames`) that are tested instead of refreshed ones; `others`, such as {"step_0": frames,
    "other_run": frames}, are compared with; `earlier` is the same model at an earlier step: how far has it moved its
    activations along the bases since? `counts` is a table of token frequencies, else they are counted here;
    `balance` lets a token type into the fit at most that often; `sinks` counts first tokens and massive ones too.
    """
    tangent = tangent or Tangent()
    odd = [kind for kind in gradients if kind not in GRADIENTS]
    if odd:
        raise unknown("gradient", odd[0], GRADIENTS)
    chosen = choose_nulls(tangent.nulls)
    opened, module = _open(model, opening)
    fit_side = make_side(fit, "fit", sinks=sinks, seed=seed)
    test_side = make_side(test, "test", sinks=sinks, seed=seed)
    require_apart(fit_side, test_side)
    objective = choose_objective(loss, module, mask=_mask_id(opened) if mask is None else mask, seed=seed)
    layout = find_layout(module, first_item(fit_side.batches[0], device_of(module)))
    past = None if earlier is None else _open(earlier, opening)[1]
    task = TangentPlan(module, layout, objective, tangent, tuple(gradients), balance, sample, seed, past)
    records: list[Record] = []
    concepts: dict[str, Any] = {}
    with differentiable(module):
        for places in groups(task, expand(layout, sites)):
            fitted = fit_pass(task, places, fit_side, counts, decode or _decoder(opened), progress)
            frames = {**fitted.frames, **(frozen or {})}
            concepts.update(fitted.concepts)
            records += fitted.records
            for subject in gradient_pass(task, places, test_side, frames, chosen, counts, progress):
                beside = _others(subject, frames, others or {}, chosen)
                basis = "frozen" if subject.site.removeprefix("grad.") in (frozen or {}) else "refreshed"
                subject = replace(subject, fitted=replace(subject.fitted, others=beside), basis=basis)
                records += tangent_records(subject, chosen)
            if past is not None:
                with differentiable(past):
                    records += [
                        r for s in displacements(task, places, test_side, frames) for r in displacement_records(s)
                    ]
    info = _information(task, opened, chosen, fit_side, test_side)
    run = create_run(out, {**run_info(info, []), "metrics": tangent_cards(), "concepts": concepts}, command)
    label: dict[str, Any] = {"run": run.name, "step": step, "tokens": "all" if sinks else "no-sink"}
    run.append([replace(record, **label) for record in with_q(records)])
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
    """The frames of a model's sites by name, to be tested later: frozen, as step 0, or as another run."""
    _, module = _open(model, opening)
    side = make_side(fit, "fit", sinks=sinks, seed=seed)
    layout = find_layout(module, first_item(side.batches[0], device_of(module)))
    nothing = Objective("none", lambda batch: (dict(batch.inputs), batch.token), lambda output, labels: labels)
    task = TangentPlan(module, layout, nothing, tangent or Tangent(), (HIDDEN,), None, sample, seed)
    frames: dict[str, SiteBases] = {}
    with differentiable(module):
        for places in groups(task, expand(layout, sites)):
            frames.update(fit_pass(task, places, side, None, None, None).frames)
    return frames


def _open(model: Any, opening: Mapping[str, Any] | None) -> tuple[Opened | None, nn.Module]:
    """A model with its output head, opened where it is not yet."""
    if isinstance(model, str | Path):
        model = open_model(model, head=True, **(opening or {}))
    if isinstance(model, Opened):
        return model, model.model
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a module, a folder, a hub id or what open_model gave; got {type(model).__name__}")
    return None, model


def _information(
    task: TangentPlan, opened: Opened | None, nulls: Sequence[str], fit: Side, test: Side
) -> dict[str, Any]:
    """What the run says of how it came about."""
    return {
        "kind": "tangent",
        "model": opened.info if opened is not None else {"architecture": type(task.model).__name__},
        "tangent": {
            "proxies": [named(proxy)[0] for proxy in task.tangent.proxies],
            "ranks": list(task.tangent.ranks),
            "nulls": list(nulls),
            "gradients": list(task.kinds),
            "loss": task.objective.name,
            "fit tokens": len(fit),
            "test tokens": len(test),
            "balance": task.balance,
        },
        "token_policy": {"first token": test.sinks, "massive": None if test.sinks else f"> {MASSIVE:g} medians"},
        "unit": test.unit,
        "seed": task.seed,
    }


def _decoder(opened: Opened | None) -> Decode | None:
    processor: Any = None if opened is None else opened.processor
    return None if processor is None else lambda ids: str(processor.decode(list(ids)))


def _mask_id(opened: Opened | None) -> int | None:
    return None if opened is None else getattr(opened.processor, "mask_token_id", None)


def _others(
    subject: GradientCase, frames: Mapping[str, SiteBases], others: Mapping[str, Frames], chosen: Sequence[str]
) -> dict[str, Any]:
    """Bases fitted elsewhere that stand beside the subject's own: half the depth away, at step 0, in another run."""
    if subject.gradient != HIDDEN:
        return {}
    name = subject.site.removeprefix("grad.")
    found = {each: given[name].bases for each, given in others.items() if name in given}
    layers = [each for each in frames if each.rpartition(".")[0] == name.rpartition(".")[0] and _is_layer(each)]
    if "other_layer" in chosen and name in layers and len(layers) > 1:
        found["other_layer"] = frames[layers[(layers.index(name) + len(layers) // 2) % len(layers)]].bases
    return {each: bases for each, bases in found.items() if each in chosen and bases[0].dim == subject.fitted.dim}


def _is_layer(name: str) -> bool:
    return name.rpartition(".")[0] in ("resid", "enc.resid", "dec.resid")
