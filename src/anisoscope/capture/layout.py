"""The sites that a model has: blocks in stacks, and names such as `resid` or `q.3` turned into sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anisoscope.errors import AnisoscopeError, CaptureError, InputError, unknown
from anisoscope.records import Site

_LAYER_KINDS = ("resid", "attn", "mlp", "q", "k", "q.pre", "k.pre", "pattern")
_KINDS = ("embed", *_LAYER_KINDS, "final.in", "final")


@dataclass(frozen=True)
class LayerRef:
    """One call of one block: its module, and which modules inside give its other sites."""

    path: str
    width: int | None  # of its output; None: not known before a forward
    attention: str | None = None  # the self-attention module, where there is exactly one and it shows its queries
    attn: str | None = None  # the module whose output is `attn.i`
    mlp: str | None = None  # the module whose output is `mlp.i`

    def part(self, name: str) -> str:
        """The path of a part (`attention`, `attn`, `mlp`) that `Stack.sites` says is there."""
        path: str | None = {"attention": self.attention, "attn": self.attn, "mlp": self.mlp}[name]
        if path is None:
            raise CaptureError(f"{self.path} has no part {name}; its sites are those of Layout.sites()")
        return path


@dataclass(frozen=True)
class Stack:
    """The blocks of one residual stream in order of call; a shared block appears as often as it is called."""

    name: str  # "", "enc" or "dec"
    blocks: tuple[LayerRef, ...]
    final: str | None  # the final norm
    grid: bool  # blocks give (batch, channels, height, width)
    batch_first: bool

    @property
    def shared(self) -> bool:
        return len({block.path for block in self.blocks}) < len(self.blocks)

    def sites(self) -> Iterator[Site]:
        """Every layer-wide site of this stack, in the order of a forward pass within each kind."""
        yield Site("embed", stack=self.name)
        for layer, block in enumerate(self.blocks):
            has = {"resid": True, "attn": bool(block.attn), "mlp": bool(block.mlp)}
            yield from (
                Site(kind, layer, stack=self.name)
                for kind in _LAYER_KINDS
                if has.get(kind, block.attention is not None)
            )
        if self.final is not None:
            yield Site("final.in", stack=self.name)
            yield Site("final", stack=self.name)


@dataclass(frozen=True)
class Layout:
    """The residual streams of a model: one stack, or an encoder and a decoder."""

    stacks: tuple[Stack, ...]

    @property
    def grid(self) -> bool:
        return all(stack.grid for stack in self.stacks)

    def sites(self) -> list[Site]:
        return list(self._sites)

    @cached_property
    def _sites(self) -> dict[Site, None]:
        """In order; capture asks before every batch."""
        return dict.fromkeys(sorted(site for stack in self.stacks for site in stack.sites()))

    def has(self, site: Site) -> bool:
        return site in self._sites


def expand(layout: Layout, names: Sequence[str | Site]) -> list[Site]:
    """Sites by name: a site stands for itself, a kind (`resid`, `enc.q`) for all its sites that the model has.

    A kind that this model lacks gives nothing, a site that it lacks is an error.
    """
    chosen: dict[Site, None] = {}
    for name in names:
        chosen.update(dict.fromkeys(_named(layout, name)))
    return sorted(chosen)


def whole(site: Site) -> Site:
    """The layer-wide site that a head's site is part of: `q.7.3` -> `q.7`."""
    return replace(site, head=None)


def _named(layout: Layout, name: str | Site) -> list[Site]:
    if isinstance(name, str):
        stack, kind = name.split(".", 1) if name.startswith(("enc.", "dec.")) else ("", name)
        if kind in _KINDS and stack in ("", *(stack.name for stack in layout.stacks)):
            return [site for site in layout.sites() if site.kind == kind and stack in ("", site.stack)]
    try:
        site = name if isinstance(name, Site) else Site.parse(name)
    except InputError:
        raise unknown("site", str(name), [*_KINDS, *map(str, layout.sites())]) from None
    if site.kind != "in" and not layout.has(whole(site)):
        raise _absent(layout, site)
    return [site]


def _absent(layout: Layout, site: Site) -> AnisoscopeError:
    """Why a model does not have a site."""
    if site.kind in ("final", "final.in"):
        return CaptureError(f"{site}: this model has no final norm after its last block; take the last resid instead")
    blocks = [block for stack in layout.stacks if stack.name == site.stack for block in stack.blocks]
    if site.layer is not None and site.layer < len(blocks) and site.kind in _LAYER_KINDS:
        return CaptureError(
            f"{site}: block {blocks[site.layer].path} does not show it: convolutions, stages of several blocks and "
            "state-space layers have no attention of their own, nn.MultiheadAttention and linear attention show no "
            "queries; ask for the kind alone to get it where it exists"
        )
    return unknown("site of this model", str(site), [*map(str, layout.sites()), "in.<module>"])
