"""A recorded pass: the tensors of a model at some sites, window by window, and a module that returns them again.

The module has the layout of the model. So the engine measures any selection of windows in any order exactly as it would
measure the model, and the model runs only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from anisoscope.data.inputs import device_of, on_device
from anisoscope.data.token_table import Batch, TokenTable, make_batch
from anisoscope.errors import InputError
from anisoscope.hooks import Layout, expand, observe_sites
from anisoscope.hooks.layout import LayerRef, Stack
from anisoscope.measurement.current_batch import counted
from anisoscope.records import Site

KINDS = ("embed", "resid", "final")  # sites that can be recorded
MOST_BYTES = 4 << 30  # of recorded tensors
_COLUMNS = [field.name for field in fields(TokenTable)]
OnTokens = Callable[[int], None]  # called with the number of tokens since the last call


@dataclass(frozen=True)
class RecordedWindow:
    """One window: the columns of its token table, (T,) each, and its tensors by the name of the site, (T, d) each."""

    table: dict[str, Tensor]
    tensors: dict[str, Tensor]

    @property
    def tokens(self) -> int:
        return len(self.table["token"])

    @property
    def document(self) -> int:
        return int(self.table["document"][0])


def record_windows(
    model: nn.Module, layout: Layout, sites: Sequence[Site], batches: Iterable[Batch], on_tokens: OnTokens | None = None
) -> list[RecordedWindow]:
    """Run a model over batches of text, and keep its tensors on the CPU.

    Raises:
        InputError: The tensors do not fit into memory, or a site has no position for every token.
    """
    windows: list[RecordedWindow] = []
    size = 0
    for batch in batches:
        seen: dict[str, Tensor] = {}

        def take(site: Site, x: Tensor, seen: dict[str, Tensor] = seen) -> None:
            seen[str(site)] = x.cpu()

        with torch.no_grad(), observe_sites(model, sites, take, layout=layout) as log:
            model(**on_device(batch.inputs, device_of(model)))
        log.require(sites)
        for name, x in seen.items():
            if x.shape[:2] != batch.counts.shape:
                raise InputError(f"{name} has no position for every token. Measure other sites, such as resid.")
        for item, counts in enumerate(counted(batch, special=True)):
            table = {name: getattr(batch, name)[item][counts] for name in _COLUMNS}
            windows.append(RecordedWindow(table, {name: x[item][counts] for name, x in seen.items()}))
            size += sum(x.nbytes for x in windows[-1].tensors.values())
        if size > MOST_BYTES:
            raise InputError(
                f"The rows of {len(sites)} sites take more than {MOST_BYTES >> 30} GB. Use fewer --sites or --tokens."
            )
        if on_tokens is not None:
            on_tokens(int(batch.counts.sum()))
    return windows


def recorded_sites(layout: Layout, names: Sequence[str]) -> list[Site]:
    """Return the sites that names stand for; without names, the middle of the residual stream.

    Raises:
        InputError: A site is not one that can be recorded.
    """
    stack = layout.stacks[0]
    middle = Site("resid", (len(stack.blocks) - 1) // 2, stack=stack.name)
    sites = [site for site in expand(layout, list(names)) if site.stack != "dec"] if names else [middle]
    wrong = next((site for site in sites if site.kind not in KINDS), None)
    if wrong is not None or not sites:
        raise InputError(
            f"{wrong or ', '.join(names)} cannot be recorded. Choose from embed, resid, resid.N and final."
        )
    return sites


class RecordedModel(nn.Module):
    """Returns recorded tensors at the sites of a model: `forward(**tensors)` takes them by the name of their site.

    Args:
        layout: The layout of the model. `RecordedModel.layout` is that of this module, with the same sites.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        stacks = []
        for stack in layout.stacks:
            paths = [f"{stack.name or 'main'}_{layer}" for layer in range(len(stack.blocks))]
            final = None if stack.final is None else f"{stack.name or 'main'}_final"
            for path in [*paths, *([] if final is None else [final])]:
                self.add_module(path, _RecordedCall())
            blocks = tuple(LayerRef(path, None) for path in paths)
            stacks.append(Stack(stack.name, blocks, final, grid=False, batch_first=True))
        self.layout = Layout(tuple(stacks))

    def forward(self, **tensors: Tensor) -> None:
        """Pass each tensor, (b, T, d), through the module of its site."""
        empty = torch.zeros(1, 1, 1)
        for stack in self.layout.stacks:
            x = tensors.get(str(Site("embed", stack=stack.name)), empty)
            for layer, block in enumerate(stack.blocks):
                x = self.get_submodule(block.path)(x, tensors.get(str(Site("resid", layer, stack=stack.name))))
            if stack.final is not None:
                self.get_submodule(stack.final)(x, tensors.get(str(Site("final", stack=stack.name))))


class _RecordedCall(nn.Module):
    """Returns the recorded output of a module, or its input if nothing was recorded there."""

    def forward(self, x: Tensor, recorded: Tensor | None) -> Tensor:
        return x if recorded is None else recorded


def recorded_batches(windows: Sequence[RecordedWindow], size: int, unit: str) -> list[Batch]:
    """Return windows as batches of `RecordedModel`, padded on the right.

    Documents are numbered in the order of the windows, as they would be in a text that holds nothing else.

    Args:
        windows: The windows; those of one document follow each other.
        size: Windows per batch.
        unit: What a document is.
    """
    numbers = {document: number for number, document in enumerate(dict.fromkeys(w.document for w in windows))}
    batches = []
    for first in range(0, len(windows), size):
        group = windows[first : first + size]
        columns = {name: _padded([window.table[name] for window in group]) for name in _COLUMNS}
        document = torch.tensor([numbers[window.document] for window in group])  # (b,)
        columns["document"] = document[:, None].expand_as(columns["document"]).contiguous()
        tensors = {name: _padded([window.tensors[name] for window in group]) for name in group[0].tensors}
        batches.append(make_batch(TokenTable(**columns), tensors, unit))
    return batches


def _padded(parts: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(parts), batch_first=True)  # (b, T) or (b, T, d)
