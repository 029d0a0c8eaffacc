"""The pass over the test tokens: forward and backward, and the gradients of every stage as sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch
from anisoscope.errors import CaptureError
from anisoscope.hooks.backward import Tape, TapeTargets, record_tape, require_gradients, run_model
from anisoscope.tangent.frequency import STRATA, frequency_strata, token_counts
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.null import HIDDEN, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.objectives import IGNORED, Objective, shuffled
from anisoscope.tangent.site_bases import SiteBases
from anisoscope.tangent.splits import Side
from anisoscope.tangent.tangent_plan import Stage, TangentPlan, linear_stages, stream_stages, table_stage
from anisoscope.tangent.weight_gradients import WeightGradients

WEIGHT_TOKENS = 1024  # test tokens of a weight's gradient: the error shuffle needs all pairs of them


def gradients(
    model: nn.Module, objective: Objective, batch: Batch, tape: Tape, labels: Tensor | None = None
) -> dict[str, Tensor]:
    """The gradient of the loss in every output on the tape, by name and in the shape of the output.

    Args:
        model: The model.
        objective: The loss.
        batch: One batch.
        tape: The tape of the hooks.
        labels: Labels to use instead of the batch's labels.

    Raises:
        CaptureError: If the loss is not a scalar with a gradient.
    """
    inputs, true_labels = objective.prepare(batch)
    output = run_model(model, inputs, tape)
    loss = objective.loss(output, true_labels if labels is None else labels)
    if loss.ndim or not loss.requires_grad:
        raise CaptureError(
            f"The loss is a tensor of shape {tuple(loss.shape)} {'with' if loss.requires_grad else 'without'} a "
            "gradient. Return a scalar that depends on the model."
        )
    names = [name for name, x in tape.outputs.items() if x.requires_grad]
    computed = torch.autograd.grad(loss, [tape.outputs[name] for name in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, computed, strict=True) if g is not None}


def gradient_pass(
    plan: TangentPlan, group: TapeTargets, side: Side, bases: Mapping[str, SiteBases]
) -> Iterator[GradientCase]:
    """Run the test tokens forward and backward once, then give the cases of a group one after another."""
    strata, stratum_names = _strata(plan, side)
    streams = stream_stages(group.sites)
    hidden = streams if HIDDEN in plan.gradients else []
    true, relabelled = StreamSums(side, bases), StreamSums(side, bases)
    linears = {name: _WeightRows() for name in group.linears}
    stage_of = {stage.name: stage for stage in linear_stages(plan, group.sites)}
    table = _WeightRows()
    with record_tape(plan.model, plan.layout, group) as tape:
        for number, batch in enumerate(side.batches):
            by_name = gradients(plan.model, plan.objective, batch, tape)
            require_gradients(tape, group, list(by_name))
            flag_massive(side, number, streams, tape, bases)
            for stage in hidden:
                marks = None if strata is None or stage.site.stack == "dec" else strata[number]
                true.add(number, stage, tape, by_name[stage.name], marks)
            for name, rows in linears.items():
                if name in by_name and name in tape.inputs:
                    x, delta = tape.rows(name, tape.inputs[name]), tape.rows(name, by_name[name])
                    keep = side.unflagged(number, stage_of[name].site, x.shape[1])
                    rows.add(side, number, stage_of[name], x, delta, keep, WEIGHT_TOKENS)
            for stage in table_stage(group):
                if stage.name in by_name:
                    g = tape.rows(stage.name, by_name[stage.name])
                    keep = _light(side, number, stage, tape, bases[stage.name].longest)
                    table.add(side, number, stage, g, g, keep, plan.sample)
            if "shuffled_labels" in plan.nulls and hidden:
                labels = shuffled(plan.objective.prepare(batch)[1], plan.seed + number + 1)
                by_name = gradients(plan.model, plan.objective, batch, tape, labels)
                for stage in hidden:
                    relabelled.add(number, stage, tape, by_name[stage.name], None)
            if plan.progress is not None:
                plan.progress(int(batch.counts.sum()))
    common: dict[str, Any] = {"unit": side.unit, "seed": plan.seed}
    for stage in hidden:
        sums, shuffled_sums = true.sums.pop(stage.name), relabelled.sums.pop(stage.name, None)
        names = stratum_names if sums.strata_size.shape[2] else ()
        yield GradientCase(
            f"grad.{stage.name}", HIDDEN, bases[stage.name], sums, relabelled=shuffled_sums, strata=names, **common
        )
    for stage in linear_stages(plan, group.sites):
        if linears[stage.name].x and stage.basis in bases:
            yield _weight_case(stage, linears[stage.name], bases[stage.basis], common)
    for stage in table_stage(group):
        if table.x:
            g, _, block, token = table.all()
            sums_by_type = WeightGradients.embedding(g, token, block)
            yield GradientCase(f"grad.{stage.name}", stage.gradient, bases[stage.name], sums_by_type, **common)


def flag_massive(side: Side, number: int, streams: list[Stage], tape: Tape, bases: Mapping[str, SiteBases]) -> None:
    """Flag the massive tokens of a batch at every site of the stream; the fit tokens set the norm."""
    for stage in streams:
        h = tape.rows(stage.name, tape.outputs[stage.name].detach())
        side.flag(number, stage.site, h, bases[stage.name].longest)


class StreamSums:
    """Sums of rows at the sites of the stream, batch after batch."""

    def __init__(self, side: Side, bases: Mapping[str, SiteBases]) -> None:
        self.sums: dict[str, Gradients] = {}
        self._side = side
        self._bases = bases

    def add(self, number: int, stage: Stage, tape: Tape, rows: Tensor, strata: Tensor | None) -> None:
        """Add the rows of a batch.

        Args:
            number: The number of the batch.
            stage: The site.
            tape: The tape with the activations.
            rows: Gradients or differences in the shape of the site's output.
            strata: Which stratum each token is in, (n, S).
        """
        g, h = tape.rows(stage.name, rows), tape.rows(stage.name, tape.outputs[stage.name].detach())
        index, tokens = self._side.tokens(number, stage.site.stack, g.shape[1])
        keep = self._side.unflagged(number, stage.site, g.shape[1])
        at = index[keep].to(g.device)
        g, h = g.reshape(-1, g.shape[-1])[at], h.reshape(-1, h.shape[-1])[at]
        marks = strata[keep] if strata is not None and len(strata) == len(index) else None
        more = Gradients.of(self._bases[stage.name], g, h, tokens.block[keep], strata=marks)
        self.sums[stage.name] = self.sums[stage.name] + more if stage.name in self.sums else more


class _WeightRows:
    """Inputs and errors of one linear map over the first test tokens."""

    def __init__(self) -> None:
        self.x: list[Tensor] = []
        self.delta: list[Tensor] = []
        self.tokens: list[Tensor] = []  # (n, 2) each: block and token id

    def add(self, side: Side, number: int, stage: Stage, x: Tensor, delta: Tensor, keep: Tensor, most: int) -> None:
        left = most - sum(map(len, self.x))
        if left <= 0:
            return
        index, tokens = side.tokens(number, stage.site.stack, x.shape[1])
        keep = keep[:left]
        rows = index[keep].to(x.device)
        self.x.append(x.detach().reshape(-1, x.shape[-1])[rows].float().cpu())
        self.delta.append(delta.reshape(-1, delta.shape[-1])[rows].float().cpu())
        self.tokens.append(torch.stack([tokens.block, tokens.token], 1)[keep])

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs, errors, blocks and token ids of all rows."""
        tokens = torch.cat(self.tokens)
        return torch.cat(self.x), torch.cat(self.delta), tokens[:, 0], tokens[:, 1]


def _light(side: Side, number: int, stage: Stage, tape: Tape, longest: float) -> Tensor:
    """The indices of the tokens that are not massive in the embedding table itself."""
    x = tape.rows(stage.name, tape.outputs[stage.name].detach())
    index, _ = side.tokens(number, stage.site.stack, x.shape[1])
    norm = torch.linalg.vector_norm(x.reshape(-1, x.shape[-1])[index.to(x.device)], dim=1)
    return (norm <= longest).cpu().nonzero()[:, 0]


def _weight_case(stage: Stage, rows: _WeightRows, fitted: SiteBases, common: Mapping[str, Any]) -> GradientCase:
    x, delta, block, _ = rows.all()
    site = f"grad.{stage.name}"
    if stage.gradient == WEIGHT_IN:
        sums = WeightGradients.weight_in(x, delta, block)
        return GradientCase(site, WEIGHT_IN, fitted, sums, errors=(x, delta), **common)
    return GradientCase(site, WEIGHT_OUT, fitted, WeightGradients.weight_out(x, delta, block), **common)


def _strata(plan: TangentPlan, side: Side) -> tuple[list[Tensor] | None, list[str]]:
    """Marks (n, 6) of each batch's tokens: rare, middle, frequent, by the input token and by the target token."""
    inputs, targets, keys = [], [], []
    for number, batch in enumerate(side.batches):
        index, tokens = side.tokens(number, "", batch.counts.shape[1])
        labels = plan.objective.prepare(batch)[1]
        if labels.shape != batch.token.shape or not bool((tokens.token >= 0).all()):
            return None, []
        inputs.append(tokens.token)
        targets.append(labels.flatten()[index].masked_fill(labels.flatten()[index] == IGNORED, -1))
        keys.append(tokens.key)
    marks = []
    for token in (torch.cat(inputs), torch.cat(targets)):
        known = token[token >= 0]
        if not len(known):
            return None, []
        table = plan.counts or dict(zip(*(part.tolist() for part in known.unique(return_counts=True)), strict=True))
        marks.append(frequency_strata(token, token_counts(token, {-1: 0, **table}), torch.cat(keys)))
    by_batch = torch.cat(marks, 1).float().split([len(key) for key in keys])
    return list(by_batch), [f"{by}.{name}" for by in ("input", "target") for name in STRATA]
