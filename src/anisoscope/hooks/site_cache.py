"""`capture`: the tensors of a model's latest forward by the names of their sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from anisoscope.errors import CaptureError, InputError, unknown
from anisoscope.hooks.find import find_layout
from anisoscope.hooks.forward import CaptureLog, observe_sites
from anisoscope.hooks.layout import Layout, expand, whole
from anisoscope.hooks.tensors import copied
from anisoscope.records import Site
from anisoscope.stats.head_scores import attention_weights


class SiteCache(Mapping[str, Tensor]):
    """The tensors of the latest forward by site: `cache["resid.3"]`. A site that cannot be seen is an error."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.log = CaptureLog()
        self._sites = {str(site): site for site in sites}
        self._tensors: dict[Site, Any] = {}  # of whole layers; attention is kept as `Heads` or `Scores`
        self._forward = 0  # the forward that they come from

    def __getitem__(self, name: str | Site) -> Tensor:
        site = self._sites.get(str(name))
        if site is None:
            raise KeyError(str(unknown("captured site", str(name), self._sites)))
        self._drop_earlier()
        if whole(site) not in self._tensors:
            self.log.require([site])
        x: Tensor = self._weights(whole(site))
        if site.head is None:
            return x
        if site.head >= x.shape[1]:
            raise CaptureError(f"{site}: the layer has only {x.shape[1]} heads.")
        return x[:, site.head]

    def __iter__(self) -> Iterator[str]:
        self._drop_earlier()
        return (name for name, site in self._sites.items() if whole(site) in self._tensors)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {tuple(self[name].shape)}" for name in self)
        return f"<SiteCache {shapes or 'empty: no forward yet'}>"

    def put(self, site: Site, x: Any, *, copy: bool) -> None:
        """Store what a forward passes on; the first tensor of a forward discards those of the one before."""
        if self._forward != self.log.forwards + 1:  # counted when a forward ends
            self._tensors.clear()
            self._forward = self.log.forwards + 1
        self._tensors[site] = copied(x) if copy else x

    def _weights(self, site: Site) -> Tensor:
        """The tensor of a layer; attention weights are computed when they are first read."""
        if not isinstance(self._tensors[site], Tensor):
            self._tensors[site] = attention_weights(self._tensors[site])
        x: Tensor = self._tensors[site]
        return x

    def _drop_earlier(self) -> None:
        """Drop the tensors of an earlier forward if the latest one has passed none on."""
        if self._forward < self.log.forwards:
            self._tensors.clear()


@contextmanager
def capture(
    model: nn.Module, sites: Sequence[Site | str], *, grad: bool = False, layout: Layout | None = None
) -> Iterator[SiteCache]:
    """Collect the tensors at some sites while a model runs; nothing else about the model changes.

    Outputs, modes and random numbers are the same as without it, and all hooks are removed at the end, also after an
    error. A compiled model runs eagerly inside the `with`, because a compiled graph calls no hooks.

    Args:
        model: Any torch module with repeated blocks, such as a transformer of Hugging Face or `nn.TransformerEncoder`;
            wrappers such as DistributedDataParallel and `torch.compile` are looked through.
        sites: Names of sites. `"resid"` stands for every layer's output, `"resid.3"` for one of them, `"q.3.1"` for
            one head. Kinds: embed, resid, attn, mlp, q, k, q.pre, k.pre (before rotary embedding), pattern (attention
            weights), final.in, final, and `in.<module>` for the input of any module.
        grad: Keep the tensors in the graph, so that a loss computed from them reaches the weights. By default each is
            a detached copy. Attention weights (pattern) never have a graph.
        layout: Where the blocks are, from `anisoscope.hooks.find_layout(model, example)`; by default the structure of
            the model decides.

    Yields:
        A mapping from names of sites to the tensors of the latest forward: (batch, positions, width) for the stream,
        (batch, heads, positions, head width) for q and k, (batch, heads, queries, keys) for pattern. It stays valid
        after the `with`.

    Raises:
        InputError: A name is unknown; the message suggests similar ones.
        CaptureError: The model does not have a site, a site was not seen in every forward, or the model was not
            called.

    >>> import torch
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    >>> with capture(model, ["resid"]) as cache:
    ...     _ = model(torch.zeros(1, 3, 8))
    >>> cache
    <SiteCache resid.0: (1, 3, 8), resid.1: (1, 3, 8)>
    """
    layout = find_layout(model) if layout is None else layout
    expanded = expand(layout, sites)
    if not expanded and sites:
        raise InputError(f"{type(model).__name__} has none of the sites {', '.join(map(str, sites))}.")
    cache = SiteCache(expanded)
    with observe_sites(
        model, expanded, lambda site, x: cache.put(site, x, copy=not grad), layout=layout, grad=grad
    ) as cache.log:
        yield cache
    cache.log.require(expanded)
