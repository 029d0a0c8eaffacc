"""The pass over test tokens: forward and backward, and the gradients of every place as sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.backward import Places, Tape, forward, require, watching
from anisoscope.data.token_table import Batch
from anisoscope.errors import CaptureError
from anisoscope.records import Site
from anisoscope.tangent.displacement import DISPLACEMENT
from anisoscope.tangent.frequency import STRATA, frequency_strata, token_counts
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.objectives import IGNORED, Objective, shuffled
from anisoscope.tangent.site_bases import SiteBases
from anisoscope.tangent.splits import Side
from anisoscope.tangent.tangent_plan import TangentPlan, linears_of, stacks_of
from anisoscope.tangent.weight_gradients import WeightGradients

WEIGHT_TOKENS = 1024  # test tokens of a weight's gradient: the error shuffle looks at all pairs of them


def gradients(
    model: nn.Module, objective: Objective, batch: Batch, seen: Tape, labels: Tensor | None = None
) -> dict[str, Tensor]:
    """d loss/d output at every place, by name and shaped like the output; `labels` in place of the batch's own."""
    inputs, own = objective.prepare(batch)
    output = forward(model, inputs, seen)
    loss = objective.loss(output, own if labels is None else labels)
    if loss.ndim or not loss.requires_grad:
        raise CaptureError(
            f"the loss is a tensor of shape {tuple(loss.shape)} "
            f"{'with' if loss.requires_grad else 'without'} a gradient; expected a scalar that depends on the model"
        )
    names = [name for name, x in seen.outputs.items() if x.requires_grad]
    found = torch.autograd.grad(loss, [seen.outputs[name] for name in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, found, strict=True) if g is not None}


def gradient_pass(
    task: TangentPlan,
    places: Places,
    side: Side,
    frames: Mapping[str, SiteBases],
    chosen: Sequence[str],
    counts: Mapping[int, int] | None,
    progress: Callable[[int], None] | None,
) -> Iterator[GradientCase]:
    """One pass over the test tokens, forward and backward; then the gradients of every place, one after another."""
    marks, names = _strata(task, side, counts)
    hidden = [str(site) for site in places.sites] if HIDDEN in task.kinds else []
    true, relabelled = _Streams(side, frames, {}), _Streams(side, frames, {})
    stacks = stacks_of(task, places)
    weights = {name: _Weights(stacks[name], [], [], []) for name in places.linears}
    table = _Weights("", [], [], [])
    with watching(task.model, task.layout, places) as seen:
        for number, batch in enumerate(side.batches):
            found = gradients(task.model, task.objective, batch, seen)
            require(seen, places, list(found))
            for name in hidden:
                here = None if marks is None or stacks[name] == "dec" else marks[number]
                true.add(number, name, stacks[name], seen, found[name], here)
            for name, part in weights.items():
                if name in found and name in seen.inputs:
                    inputs, errors = seen.rows(name, seen.inputs[name]), seen.rows(name, found[name])
                    part.add(side, number, inputs, errors, WEIGHT_TOKENS)
            if places.embedding is not None and places.embedding in found:
                at_table = seen.rows(places.embedding, found[places.embedding])
                table.add(side, number, at_table, at_table, task.sample)
            if "shuffled_labels" in chosen and hidden:
                labels = shuffled(task.objective.prepare(batch)[1], task.seed + number + 1)
                found = gradients(task.model, task.objective, batch, seen, labels)
                for name in hidden:
                    relabelled.add(number, name, stacks[name], seen, found[name], None)
            if progress is not None:
                progress(int(batch.counts.sum()))
    about: dict[str, Any] = {"unit": side.unit, "seed": task.seed}
    for name in hidden:
        sums, again = true.sums.pop(name), relabelled.sums.pop(name, None)
        shown = names if sums.strata_size.shape[2] else ()
        yield GradientCase(f"grad.{name}", HIDDEN, frames[name], sums, relabelled=again, strata=shown, **about)
    yield from _weight_subjects(linears_of(task, places.sites), weights, frames, about)
    if places.embedding is not None and table.x:
        x, _, block, token = table.all()
        grad = WeightGradients.embedding(x, token, block)
        yield GradientCase(f"grad.{places.embedding}", EMBEDDING, frames[places.embedding], grad, **about)


@dataclass(frozen=True)
class _Streams:
    """Sums of rows at the sites of the stream, batch after batch."""

    side: Side
    frames: Mapping[str, SiteBases]
    sums: dict[str, Gradients]

    def add(self, number: int, name: str, stack: str, seen: Tape, rows: Tensor, marks: Tensor | None) -> None:
        """Adds a batch's rows that are shaped like the site's output; `marks` says which stratum each token is in."""
        g, h = seen.rows(name, rows), seen.rows(name, seen.outputs[name].detach())
        place, tokens = self.side.chosen(number, stack, g.shape[1])
        at = place.to(g.device)
        g, h = g.reshape(-1, g.shape[-1])[at], h.reshape(-1, h.shape[-1])[at]
        light = (torch.linalg.vector_norm(h, dim=1) <= self.frames[name].longest).nonzero()[:, 0]
        here = light.cpu()
        strata = marks[here] if marks is not None and len(marks) == len(place) else None
        more = Gradients.of(self.frames[name], g[light], h[light], tokens.block[here], strata=strata)
        self.sums[name] = self.sums[name] + more if name in self.sums else more


def displacements(
    task: TangentPlan, places: Places, side: Side, frames: Mapping[str, SiteBases]
) -> Iterator[GradientCase]:
    """How the test tokens' activations have changed since the earlier model, site by site."""
    assert task.earlier is not None
    changes = _Streams(side, frames, {})
    stream = Places(places.sites)
    with torch.no_grad(), ExitStack() as hooks:
        now = hooks.enter_context(watching(task.model, task.layout, stream))
        then = hooks.enter_context(watching(task.earlier, task.layout, stream))
        for number, batch in enumerate(side.batches):
            inputs = task.objective.prepare(batch)[0]
            forward(task.model, inputs, now)
            forward(task.earlier, inputs, then)
            for site in places.sites:
                name = str(site)
                change = now.outputs[name] - then.outputs[name].to(now.outputs[name])
                changes.add(number, name, site.stack, now, change, None)
    for name, found in changes.sums.items():
        yield GradientCase(name, DISPLACEMENT, frames[name], found, unit=side.unit, seed=task.seed)


@dataclass
class _Weights:
    """Inputs and errors of one linear map of a stack over the first test tokens."""

    stack: str
    x: list[Tensor]
    delta: list[Tensor]
    tokens: list[Tensor]  # (n, 2) block and token id

    def add(self, side: Side, number: int, x: Tensor, delta: Tensor, most: int) -> None:
        left = most - sum(map(len, self.x))
        if left <= 0:
            return
        place, tokens = side.chosen(number, self.stack, x.shape[1])
        rows = place[:left].to(x.device)
        self.x.append(x.detach().reshape(-1, x.shape[-1])[rows].float().cpu())
        self.delta.append(delta.reshape(-1, delta.shape[-1])[rows].float().cpu())
        self.tokens.append(torch.stack([tokens.block, tokens.token], 1)[:left])

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens = torch.cat(self.tokens)
        return torch.cat(self.x), torch.cat(self.delta), tokens[:, 0], tokens[:, 1]


def _weight_subjects(
    linears: Mapping[Site, tuple[str | None, str | None]],
    weights: Mapping[str, _Weights],
    frames: Mapping[str, SiteBases],
    about: Mapping[str, Any],
) -> Iterator[GradientCase]:
    """Readers are tested in the space of their inputs, writers in the stream that they write to."""
    for site, (reader, writer) in linears.items():
        if reader is not None and weights[reader].x and reader in frames:
            x, delta, block, _ = weights[reader].all()
            grad = WeightGradients.weight_in(x, delta, block)
            yield GradientCase(f"grad.{reader}", WEIGHT_IN, frames[reader], grad, errors=(x, delta), **about)
        if writer is not None and weights[writer].x:
            x, delta, block, _ = weights[writer].all()
            grad = WeightGradients.weight_out(x, delta, block)
            yield GradientCase(f"grad.{writer}", WEIGHT_OUT, frames[str(site)], grad, **about)


def _strata(task: TangentPlan, side: Side, counts: Mapping[int, int] | None) -> tuple[list[Tensor] | None, list[str]]:
    """Marks (n, 6) of each batch's tokens: rare, middle, frequent, by the input token and by the target token."""
    inputs, targets, keys = [], [], []
    for number, batch in enumerate(side.batches):
        place, tokens = side.chosen(number, "", batch.counts.shape[1])
        labels = task.objective.prepare(batch)[1]
        if labels.shape != batch.token.shape or not bool((tokens.token >= 0).all()):
            return None, []
        inputs.append(tokens.token)
        targets.append(labels.flatten()[place].masked_fill(labels.flatten()[place] == IGNORED, -1))
        keys.append(tokens.key)
    marks = []
    for token in (torch.cat(inputs), torch.cat(targets)):
        known = token[token >= 0]
        if not len(known):
            return None, []
        table = counts or dict(zip(*(part.tolist() for part in known.unique(return_counts=True)), strict=True))
        marks.append(frequency_strata(token, token_counts(token, {-1: 0, **table}), torch.cat(keys)))
    by_batch = torch.cat(marks, 1).float().split([len(key) for key in keys])
    return list(by_batch), [f"{by}.{name}" for by in ("input", "target") for name in STRATA]
