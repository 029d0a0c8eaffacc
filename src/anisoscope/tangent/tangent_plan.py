"""The plan of a tangent test: what the passes over fit and test tokens share, and what they visit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from anisoscope.errors import InputError
from anisoscope.hooks import Layout
from anisoscope.hooks.backward import TapeTargets, input_embedding, reader_and_writer
from anisoscope.records import Site
from anisoscope.tangent import Tangent
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_IN, WEIGHT_OUT
from anisoscope.tangent.objectives import Objective

Decode = Callable[[Sequence[int]], str]
Progress = Callable[[int], None]
_BYTES = 1 << 30  # of rows in memory at a time; more sites are visited in groups, one pass per group


@dataclass(frozen=True)
class TangentPlan:
    """What a tangent test does.

    Attributes:
        model: The model.
        layout: Its layers.
        objective: The loss whose gradients are tested.
        tangent: The proxies and ranks to fit.
        gradients: The kinds of gradients to test.
        nulls: The names of the nulls and references to compute.
        counts: How often each token id occurs; None to count the tokens of the test.
        balance: The most occurrences of one token type in the fit; None for no limit.
        sample: The number of fit tokens whose activations are kept.
        seed: The seed of every draw.
        earlier: The same model at an earlier step.
        decode: From token ids to text, for readable concepts.
        progress: Called with the number of tokens after every batch.
    """

    model: nn.Module
    layout: Layout
    objective: Objective
    tangent: Tangent
    gradients: tuple[str, ...]
    sample: int
    seed: int
    nulls: tuple[str, ...] = ()
    counts: Mapping[int, int] | None = None
    balance: int | None = None
    earlier: nn.Module | None = None
    decode: Decode | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Stage:
    """One tensor of the model whose rows are fitted on or tested.

    Attributes:
        name: A site of the stream, or `weight.<path>` for a linear map or the embedding table.
        gradient: The kind of gradient that is tested with it.
        site: Its position in the forward pass, for the token policy.
        basis: The name of the stage whose bases it is tested against.
    """

    name: str
    gradient: str
    site: Site
    basis: str


def site_groups(plan: TangentPlan, sites: Sequence[Site]) -> Iterator[TapeTargets]:
    """The sites in groups whose rows fit into memory, each with the linear maps of its layers.

    Raises:
        InputError: If there are no sites, or if one is not in the stream.
    """
    odd = [site for site in sites if site.kind not in ("embed", "resid")]
    if odd:
        raise InputError(f"Gradients cannot be tested at {odd[0]}. Use embed and resid sites.")
    if not sites:
        raise InputError("No sites to test. Use embed and resid sites.")
    width = max(layer.width or 1024 for stack in plan.layout.stacks for layer in stack.blocks)
    tensors = 1 + (WEIGHT_IN in plan.gradients)  # kept per site
    size = max(1, _BYTES // (4 * tensors * (plan.sample * width + 16 * width**2)))
    # an encoder and a decoder look up one table in the same forward pass: its gradient belongs to neither
    one_stack = len(plan.layout.stacks) == 1 and EMBEDDING in plan.gradients
    embedding = input_embedding(plan.model) if one_stack else None
    for start in range(0, len(sites), size):
        group = tuple(sites[start : start + size])
        linears = dict.fromkeys(stage.name for stage in linear_stages(plan, group))
        yield TapeTargets(group, tuple(linears), embedding if start == 0 else None)


def stream_stages(sites: Sequence[Site]) -> list[Stage]:
    """One stage per site of the stream."""
    return [Stage(str(site), HIDDEN, site, str(site)) for site in sites]


def linear_stages(plan: TangentPlan, sites: Sequence[Site]) -> list[Stage]:
    """The linear maps that read and write each residual site's layer, if their gradients are tested.

    Readers are tested in the space of their inputs, writers in the stream that they write to.
    """
    stacks = {stack.name: stack for stack in plan.layout.stacks}
    out = []
    for site in sites:
        if site.kind == "resid" and site.layer is not None and {WEIGHT_IN, WEIGHT_OUT} & set(plan.gradients):
            reader, writer = reader_and_writer(plan.model, stacks[site.stack], site.layer)
            inside = Site("mlp", site.layer, stack=site.stack)
            if reader is not None and WEIGHT_IN in plan.gradients:
                out.append(Stage(reader, WEIGHT_IN, inside, reader))
            if writer is not None and WEIGHT_OUT in plan.gradients:
                out.append(Stage(writer, WEIGHT_OUT, inside, str(site)))
    return out


def fit_stages(plan: TangentPlan, group: TapeTargets) -> list[Stage]:
    """The stages that bases are fitted at, in the order of the forward pass."""
    readers = [stage for stage in linear_stages(plan, group.sites) if stage.gradient == WEIGHT_IN]
    return [*table_stage(group), *sorted([*stream_stages(group.sites), *readers], key=lambda stage: stage.site)]


def table_stage(group: TapeTargets) -> list[Stage]:
    """The embedding table, if it is in the group."""
    if group.embedding is None:
        return []
    return [Stage(group.embedding, EMBEDDING, Site("embed"), group.embedding)]
