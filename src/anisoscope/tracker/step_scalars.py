"""Gradient norm and update/weight ratio of every layer at every training step, kept on the device until they are read.

The gradient norm is exact: one call reads every gradient once, as gradient clipping does. The update is the change of
the weights between two calls, whatever optimiser made it. Copying all weights at every step would cost as much as the
optimiser, so it is estimated from a fixed sample: every parameter of up to 2,048 entries as a whole, and 128 runs of 16
neighbouring entries of every larger one, weighted by its size. The runs are evenly spaced, and shifted against the
rows of the matrix, so they meet every part of it. With m = 2,048 entries per matrix and κ their kurtosis, the relative
standard error of ‖ΔW‖ and of ‖W‖ is about √((κ − 1)/m)/2: 1.6 % per matrix for Gaussian entries, less for a layer of
several matrices. It is larger if a step changes only some rows, as plain SGD does in an embedding. The sample stays the
same, so values of different steps can be compared much more closely than that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.distributed import Ranks, is_sharded, unwrapped
from anisoscope.errors import InputError
from anisoscope.hooks import Layout
from anisoscope.records import Site
from anisoscope.stats.arithmetic import plain

REST = "weight.rest"  # parameters outside the layers: embeddings, final norm, head
ALL = "weight.all"  # all trainable parameters together
_RUN = 16  # neighbouring entries: one cache line of float32
_RUNS = 128  # of every large parameter
_WHOLE = (Tensor, nn.Parameter)  # types of tensors that are not sharded; asking a tensor for an attribute costs more
_GOLDEN = 0.381966  # share of a row between the starts of two runs that spreads the starts most evenly


@dataclass(frozen=True)
class LayerWeights:
    """The trainable parameters of a model, by layer.

    Attributes:
        sites: `resid.i` for the parameters of layer i, then `weight.rest` if there are others.
        parameters: All parameters, in the order of the sites.
        site: Index of each parameter's site, (parameters,).
        share: Share of each parameter's squares that this rank adds to the sum over ranks, (parameters,).
        sharded: Whether each rank holds a part of the parameters, so that squares must be added over ranks.
    """

    sites: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    site: Tensor
    share: Tensor
    sharded: bool

    @property
    def device(self) -> torch.device:
        return self.share.device

    def by_site(self, squares: Tensor) -> Tensor:
        """Add squares of the parameters, (parameters,), to squares of the sites, (sites,)."""
        return squares.new_zeros(len(self.sites)).index_add_(0, self.site, squares)


def layer_weights(model: nn.Module, layout: Layout, ranks: Ranks | None = None) -> LayerWeights:
    """Return the trainable parameters of a model by layer; a parameter that layers share counts for the first.

    Args:
        model: The model, wrapped or not.
        layout: Where its layers are.
        ranks: The processes of the job.

    Raises:
        InputError: The model has no trainable parameter.
    """
    model = unwrapped(model)
    blocks = [(stack.name, layer, block) for stack in layout.stacks for layer, block in enumerate(stack.blocks)]
    modules = {
        str(Site("resid", layer, stack=stack)): model.get_submodule(block.path) for stack, layer, block in blocks
    }
    home: dict[nn.Parameter, str] = {}
    for site, module in {**modules, REST: model}.items():
        home |= {p: site for p in module.parameters() if p.requires_grad and p not in home}
    if not home:
        raise InputError(f"{type(model).__name__} has no trainable parameter. Set requires_grad before tracking it.")
    sites = tuple(dict.fromkeys(home.values()))
    sharded = is_sharded(model)
    world = 1 if ranks is None else ranks.world
    device = _local(next(iter(home))).device
    shares = [_share(p, world) if sharded else 1.0 for p in home]
    return LayerWeights(
        sites,
        tuple(home),
        torch.tensor([sites.index(site) for site in home.values()], device=device),
        torch.tensor(shares, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device),
        sharded,
    )


def gradient_squares(weights: LayerWeights, scale: float | Tensor = 1.0) -> Tensor:
    """Return Σ g² over the gradients of each site, (sites,) float64 on the device of the gradients, without waiting.

    A parameter without a gradient counts as 0.

    Args:
        weights: The parameters.
        scale: The loss scale in the gradients: a number, or a tensor that stays on its device.

    Example:
        >>> linear = nn.Linear(2, 1, bias=False)
        >>> linear.weight.grad = torch.tensor([[3.0, 4.0]])
        >>> one = LayerWeights((REST,), (linear.weight,), torch.zeros(1, dtype=torch.int64), torch.ones(1), False)
        >>> gradient_squares(one).sqrt().tolist()
        [5.0]
    """
    with torch.no_grad():
        grads = [_nothing(p) if p.grad is None else _local(p.grad) for p in weights.parameters]
        # norms of float16 would overflow
        wide = torch.float64 if torch.float64 in {g.dtype for g in grads} else torch.float32
        norms = _together(torch._foreach_norm(grads, 2, dtype=wide), weights.device)
        return weights.by_site(norms.to(weights.share.dtype).square() * weights.share) / scale**2


class UpdateSample:
    """A fixed sample of the weights of each site, and its values at the last call.

    Args:
        weights: The parameters.
        seed: Of the positions of the sampled entries.
    """

    def __init__(self, weights: LayerWeights, seed: int = 0) -> None:
        draw = random.Random(seed)
        self._weights = weights
        self._pieces = [_Piece.choose(_local(p), draw) for p in weights.parameters]
        large = torch.tensor([piece.runs > 1 for piece in self._pieces])
        order = torch.cat((large.nonzero()[:, 0], (~large).nonzero()[:, 0]))  # large parameters first
        self._order = order.tolist()
        self._large = int(large.sum())
        every = torch.tensor([self._pieces[i].every for i in self._order]).to(weights.share)
        self._share = weights.share[order.to(weights.device)] * every
        self._site = weights.site[order.to(weights.device)]
        self._small = [self._pieces[i].entries for i in self._order[self._large :]]
        self._last: Tensor | None = None  # (entries,)

    def squares(self) -> Tensor | None:
        """Return Σ Δw² since the last call and Σ w² of each site, (2, sites) on the device; None at the first call."""
        now = self._now()
        last, self._last = self._last, now
        if last is None:
            return None
        moved, held = self._site_squares(now - last), self._site_squares(now)
        return torch.stack((moved, held))

    def _now(self) -> Tensor:
        """Return the sampled entries: all large parameters, each with as many, then the small ones."""
        views = [self._pieces[i].view(self._weights.parameters[i], self._weights.device) for i in self._order]
        large, small = views[: self._large], views[self._large :]
        parts = ([torch.cat(large).view(-1)] if large else []) + small
        return plain(torch.cat(parts))

    def _site_squares(self, entries: Tensor) -> Tensor:
        split = self._large * _RUNS * _RUN
        norms = [torch.linalg.vector_norm(entries[:split].view(-1, _RUNS * _RUN), dim=1)] if self._large else []
        if self._small:
            norms.append(torch.stack(torch._foreach_norm(entries[split:].split(self._small))))
        squares = torch.cat(norms).to(self._share.dtype).square() * self._share
        return squares.new_zeros(len(self._weights.sites)).index_add_(0, self._site, squares)


@dataclass(frozen=True)
class StepValues:
    """What one training step did, as plain numbers, which are not finite if the gradients or weights are not.

    Attributes:
        step: The step.
        gradient_norm: ‖g‖ by site: `resid.i` for layer i, `weight.rest`, and `weight.all` for all parameters together.
        update_ratio: ‖Δw‖/‖w‖ by site; empty if the weights after this step were not seen.
        loss: The loss, if it was passed.
        learning_rate: The learning rate, if it was passed.
    """

    step: int
    gradient_norm: dict[str, float]
    update_ratio: dict[str, float]
    loss: float | None = None
    learning_rate: float | None = None


@dataclass
class _Pending:
    """One step whose numbers are still on the device."""

    step: int
    gradient: Tensor  # (sites,) squares
    loss: Tensor | float | None
    learning_rate: float | None
    update: Tensor | None = None  # (2, sites) squares


class StepScalars:
    """Collects the scalars of every step. Nothing waits for the device before `read`.

    Call `after_update` before each forward and `after_backward` before the optimiser's step:

    >>> scalars = StepScalars(model, find_layout(model))                    # doctest: +SKIP
    >>> for step, batch in enumerate(loader):                               # doctest: +SKIP
    ...     scalars.after_update()
    ...     loss = model(**batch).loss
    ...     loss.backward()
    ...     scalars.after_backward(step, loss=loss)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> scalars.after_update()                                              # doctest: +SKIP
    >>> values = scalars.read()                                             # doctest: +SKIP

    Args:
        model: The model that is trained.
        layout: Where its layers are.
        ranks: The processes of the job. With sharded parameters, `read` adds the squares of all ranks.
        seed: Of the sampled weights.

    Attributes:
        sites: The sites of the values, without `weight.all`.
    """

    def __init__(self, model: nn.Module, layout: Layout, *, ranks: Ranks | None = None, seed: int = 0) -> None:
        self._ranks = ranks or Ranks()
        self._weights = layer_weights(model, layout, self._ranks)
        self._sample = UpdateSample(self._weights, seed)
        self._pending: list[_Pending] = []
        self.sites = self._weights.sites

    def after_update(self) -> None:
        """Note how far the last step has moved the weights. Call it after the optimiser's step, or before a forward."""
        squares = self._sample.squares()
        if self._pending and self._pending[-1].update is None:
            self._pending[-1].update = squares

    def after_backward(
        self,
        step: int,
        *,
        scale: float | Tensor = 1.0,
        loss: Tensor | float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Note the gradients of a step. Call it after backward and before the optimiser's step.

        Args:
            step: The number of the step.
            scale: The loss scale that is still in the gradients.
            loss: The loss of the step. A tensor stays on its device.
            learning_rate: The learning rate of the step.
        """
        kept = loss.detach().clone() if isinstance(loss, Tensor) else loss
        self._pending.append(_Pending(step, gradient_squares(self._weights, scale), kept, learning_rate))

    def read(self) -> list[StepValues]:
        """Return the values of all steps since the last call, and forget them.

        A step whose update was not seen yet is returned without it: call `after_update` first.

        With sharded parameters, all ranks must call this together.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return []
        missing = torch.full_like(pending[0].gradient, math.nan).expand(2, -1)
        squares = torch.stack(
            [torch.cat((each.gradient[None], missing if each.update is None else each.update)) for each in pending]
        )  # (steps, 3, sites)
        losses = [each.loss for each in pending]
        if self._weights.sharded:
            squares = self._ranks.add(squares)
        squares = torch.cat((squares, squares.sum(2, keepdim=True)), 2)  # (steps, 3, sites + 1)
        norms = torch.stack((squares[:, 0].sqrt(), (squares[:, 1] / squares[:, 2]).sqrt()), 1).tolist()
        return [
            StepValues(
                each.step,
                dict(zip((*self.sites, ALL), gradient, strict=True)),
                {} if each.update is None else dict(zip((*self.sites, ALL), ratio, strict=True)),
                None if loss is None else float(loss),
                each.learning_rate,
            )
            for each, loss, (gradient, ratio) in zip(pending, losses, norms, strict=True)
        ]


@dataclass
class _Piece:
    """Which entries of a parameter are sampled: all, or `_RUNS` runs of `_RUN` entries, `stride` apart."""

    runs: int
    entries: int
    stride: int
    start: int
    every: float  # entries of the parameter per sampled entry
    _view: Tensor | None = None
    _pointer: int = 0

    @classmethod
    def choose(cls, x: Tensor, draw: random.Random) -> _Piece:
        """Choose runs whose starts are evenly spread over all rows and all columns."""
        n, sampled = x.numel(), _RUNS * _RUN
        if n <= sampled or not x.is_contiguous():
            return cls(1, n, n, 0, 1.0)
        stride = _stride(n // _RUNS, x.shape[-1])
        return cls(_RUNS, sampled, stride, draw.randrange(n - (_RUNS - 1) * stride - _RUN + 1), n / sampled)

    def view(self, parameter: nn.Parameter, device: torch.device) -> Tensor:
        """Return the entries, (runs, _RUN) or (entries,); made again only if the parameter has moved in memory."""
        x = _local(parameter)
        if self._view is None or self._pointer != x.data_ptr() or not x.is_contiguous():
            flat = x.detach().reshape(-1)
            start = flat.storage_offset() + self.start
            shape, strides = ((self.runs, _RUN), (self.stride, 1)) if self.runs > 1 else ((self.entries,), (1,))
            self._view, self._pointer = flat.as_strided(shape, strides, start), x.data_ptr()
        return self._view if self._view.device == device else self._view.to(device, non_blocking=True)


def _stride(most: int, row: int) -> int:
    """Return a stride close to `most` whose multiples, as columns of rows this long, are spread evenly.

    >>> _stride(4608, 384)  # 12 whole rows: every run would start in the same column
    4371
    """
    candidates = range(max(most - row, most - most // 10) + 1, most + 1)
    return min(candidates, key=lambda stride: abs(stride % row / row - _GOLDEN))


def _together(numbers: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return 0-d tensors of any device as one vector on this device."""
    return torch.stack([x if x.device == device else x.to(device, non_blocking=True) for x in numbers])


def _nothing(parameter: nn.Parameter) -> Tensor:
    local = _local(parameter)
    return local.new_zeros(1)


def _local(x: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, any other tensor unchanged."""
    if type(x) in _WHOLE:
        return x
    local = getattr(x, "to_local", None)
    part: Tensor = x if local is None else local()
    return part


def _share(parameter: Any, world: int) -> float:
    """Return the share of a parameter's squares to add on this rank, if several ranks hold the same entries."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return 1 / world
    return 1 / math.prod(mesh.size(i) for i, placement in enumerate(parameter.placements) if placement.is_replicate())
