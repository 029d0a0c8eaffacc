"""What the two passes of a tangent test share: the model, where to look, what to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from anisoscope.capture import Layout
from anisoscope.capture.backward import Places, input_embedding, reader_and_writer
from anisoscope.errors import InputError
from anisoscope.records import Site
from anisoscope.tangent import Tangent
from anisoscope.tangent.null import EMBEDDING, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.objectives import Objective

_BYTES = 1 << 30  # of rows kept at a time: more sites are done in groups, one pass each


@dataclass(frozen=True)
class TangentPlan:
    """What both passes of a test share."""

    model: nn.Module
    layout: Layout
    objective: Objective
    tangent: Tangent
    kinds: tuple[str, ...]
    balance: int | None
    sample: int
    seed: int
    earlier: nn.Module | None = None  # the same model at an earlier step


def groups(task: TangentPlan, sites: Sequence[Site]) -> Iterator[Places]:
    """The sites in groups whose rows fit into memory together, each with the weights of its blocks."""
    odd = [site for site in sites if site.kind not in ("embed", "resid")]
    if odd or not sites:
        raise InputError(f"{odd[0] if odd else 'nothing'}: gradients are tested at embed and resid sites")
    width = max(block.width or 1024 for stack in task.layout.stacks for block in stack.blocks)
    tensors = 1 + (WEIGHT_IN in task.kinds)  # kept rows a site
    each = max(1, _BYTES // (4 * tensors * (task.sample * width + 16 * width**2)))
    # an encoder and a decoder look up one table twice in a forward: its gradient belongs to neither side
    one = len(task.layout.stacks) == 1 and EMBEDDING in task.kinds
    embedding = input_embedding(task.model) if one else None
    for start in range(0, len(sites), each):
        group = tuple(sites[start : start + each])
        linears = dict.fromkeys(path for pair in linears_of(task, group).values() for path in pair if path is not None)
        yield Places(group, tuple(linears), embedding if start == 0 else None)


def linears_of(task: TangentPlan, sites: Sequence[Site]) -> dict[Site, tuple[str | None, str | None]]:
    """The reader and the writer of each residual site's block, where their gradients are tested."""
    stacks = {stack.name: stack for stack in task.layout.stacks}
    found = {}
    for site in sites:
        if site.kind == "resid" and site.layer is not None and {WEIGHT_IN, WEIGHT_OUT} & set(task.kinds):
            reader, writer = reader_and_writer(task.model, stacks[site.stack], site.layer)
            found[site] = (reader if WEIGHT_IN in task.kinds else None, writer if WEIGHT_OUT in task.kinds else None)
    return found


def stacks_of(task: TangentPlan, places: Places) -> dict[str, str]:
    """Which stack (encoder, decoder or the only one) each place is in, by its name."""
    found = {str(site): site.stack for site in places.sites}
    for site, pair in linears_of(task, places.sites).items():
        found.update({name: site.stack for name in pair if name is not None})
    return found if places.embedding is None else {**found, places.embedding: ""}
