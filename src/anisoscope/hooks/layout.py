"""The layout of a model: its blocks in stacks, the sites they have, and names such as `resid` turned into sites."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anisoscope.errors import AnisoscopeError, CaptureError, InputError, unknown
from anisoscope.records import Site

_LAYER_KINDS = ("resid", "attn", "mlp", "router", "q", "k", "q.pre", "k.pre", "pattern")
_LAYER_NAME = re.compile(r"(?:layers?|blocks?|h|hidden(?:_states?)?|residual|resid)[._]?(\d+)")
_KINDS = ("embed", *_LAYER_KINDS, "final.in", "final")


@dataclass(frozen=True)
class LayerRef:
    """One call of one block: the paths of its module and of the modules inside that give its other sites."""

    path: str
    width: int | None  # of its output; None: not known without a forward
    attention: str | None = None  # the self-attention module, if there is exactly one and it shows its queries
    attn: str | None = None  # the module whose output is `attn.i`
    mlp: str | None = None  # the module whose output is `mlp.i`
    router: str | None = None  # the module that chooses experts

    def part(self, name: str) -> str:
        """Return the path of a part: `attention`, `attn`, `mlp` or `router`.

        Raises:
            CaptureError: The block has no such part.
        """
        paths = {"attention": self.attention, "attn": self.attn, "mlp": self.mlp, "router": self.router}
        path = paths[name]
        if path is None:
            raise CaptureError(f"{self.path} has no part {name}. Layout.sites() lists the sites of the model.")
        return path


@dataclass(frozen=True)
class Stack:
    """The blocks of one residual stream in the order of their calls; a shared block appears once per call."""

    name: str  # "", "enc" or "dec"
    blocks: tuple[LayerRef, ...]
    final: str | None  # the final norm
    grid: bool  # blocks return (batch, channels, height, width)
    batch_first: bool

    @property
    def shared(self) -> bool:
        return len({block.path for block in self.blocks}) < len(self.blocks)

    def sites(self) -> Iterator[Site]:
        """Yield every layer-wide site of this stack."""
        yield Site("embed", stack=self.name)
        for layer, block in enumerate(self.blocks):
            has = {"resid": True, "attn": bool(block.attn), "mlp": bool(block.mlp), "router": bool(block.router)}
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
        """In order; cached because every batch needs it."""
        return dict.fromkeys(sorted(site for stack in self.stacks for site in stack.sites()))

    def has(self, site: Site) -> bool:
        return site in self._sites


def expand(layout: Layout, names: Sequence[str | int | Site]) -> list[Site]:
    """Return the sites that names stand for, sorted.

    Args:
        layout: The layout of the model.
        names: Sites, their names (`resid.3`), kinds (`resid`, `enc.q`), which stand for all sites of that kind, or
            numbers of layers: 3 stands for `resid.3`.

    Raises:
        InputError: A name is unknown.
        CaptureError: The model does not have a site. A kind that it does not have gives no site and no error.
    """
    if isinstance(names, str):
        raise InputError(f"sites must be a list of names, such as [{names!r}], not a text")
    sites: dict[Site, None] = {}
    for name in names:
        sites.update(dict.fromkeys(_named(layout, name)))
    return sorted(sites)


def whole(site: Site) -> Site:
    """Return the layer-wide site that a head's site is part of: `q.7.3` -> `q.7`."""
    return replace(site, head=None)


def _named(layout: Layout, name: str | int | Site) -> list[Site]:
    if isinstance(name, int):
        name = f"resid.{name}"
    if isinstance(name, str):
        stack, kind = name.split(".", 1) if name.startswith(("enc.", "dec.")) else ("", name)
        if kind in _KINDS and stack in ("", *(stack.name for stack in layout.stacks)):
            return [site for site in layout.sites() if site.kind == kind and stack in ("", site.stack)]
    try:
        site = name if isinstance(name, Site) else Site.parse(name)
    except InputError:
        raise _not_a_site(layout, str(name)) from None
    if site.kind != "in" and not layout.has(whole(site)):
        raise _absent(layout, site)
    return [site]


def _not_a_site(layout: Layout, name: str) -> InputError:
    """Return the error for a name that is no site; `layer.3`, `block_3` and `h.3` mean the output of layer 3."""
    known = [*_KINDS, *map(str, layout.sites())]
    layer = _LAYER_NAME.fullmatch(name)
    if layer is not None and f"resid.{layer[1]}" in known:
        return InputError(f"No site named {name!r}. Did you mean 'resid.{layer[1]}', the output of layer {layer[1]}?")
    return unknown("site", name, known)


def _absent(layout: Layout, site: Site) -> AnisoscopeError:
    """Return the error that explains why a model does not have a site."""
    if site.kind in ("final", "final.in"):
        return CaptureError(f"{site}: this model has no final norm after its last block. Use the last resid instead.")
    blocks = [block for stack in layout.stacks if stack.name == site.stack for block in stack.blocks]
    if site.layer is not None and site.layer < len(blocks) and site.kind in _LAYER_KINDS:
        return CaptureError(
            f"{site}: block {blocks[site.layer].path} does not show it. Convolutions, stages of several blocks and "
            "state-space layers have no attention, and nn.MultiheadAttention and linear attention do not show their "
            f"queries. Request the kind {site.kind} to get it in the layers that have it."
        )
    return unknown("site of this model", str(site), [*map(str, layout.sites()), "in.<module>"])
