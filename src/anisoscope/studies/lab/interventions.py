"""Interventions on the residual stream during training: a push towards isotropy, or a projected gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.studies.lab.experiment import Recipe
from anisoscope.studies.lab.targets import isoscore_star
from anisoscope.studies.lab.transformer import Transformer


class Interventions:
    """A context with hooks on the layers of a model in training, as the `Recipe` requests.

    `project` keeps the part of d loss/d h after every layer that is inside (`tangent`) or outside (`normal`) the span
    of the `rank` strongest principal directions of that layer's outputs on held-out tokens, or inside a fixed `random`
    subspace.
    """

    def __init__(self, model: Transformer, recipe: Recipe, held_out: Tensor) -> None:
        self.model, self.recipe, self.held_out = model, recipe, held_out
        self.bases: list[Tensor] = []  # (width, rank) per layer, orthonormal
        self._scores: list[Tensor] = []
        self._hooks = ExitStack()

    def __enter__(self) -> Interventions:
        for layer, block in enumerate(self.model.blocks):
            if self.recipe.isoscore:
                self._on_output(block, self._score)
            if self.recipe.project != "none":
                self._on_output(block, self._projecting(layer))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def before_step(self, step: int) -> None:
        """Fit the subspaces if they are due."""
        if self.recipe.project == "random" and not self.bases:
            self.bases = [self._random(layer) for layer in range(len(self.model.blocks))]
        elif self.recipe.project in ("tangent", "normal") and (not self.bases or step % self.recipe.refresh == 0):
            self.bases = principal_directions(self.model, self.held_out, self.recipe.rank)

    def penalty(self) -> Tensor | float:
        """Return the term to add to the loss of the last forward pass: isoscore · mean over layers of 1 − IsoScore*."""
        if not self._scores:
            return 0.0
        missing = 1 - torch.stack(self._scores).mean()
        self._scores.clear()
        return self.recipe.isoscore * missing

    def _on_output(self, block: nn.Module, call: Callable[[Tensor], None]) -> None:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if output.requires_grad and self.model.training:
                call(output)

        self._hooks.callback(block.register_forward_hook(hook).remove)

    def _score(self, x: Tensor) -> None:
        self._scores.append(isoscore_star(x.flatten(0, 1), self.recipe.shrinkage))

    def _projecting(self, layer: int) -> Callable[[Tensor], None]:
        def attach(x: Tensor) -> None:
            x.register_hook(lambda g: self._kept(g, self.bases[layer]))

        return attach

    def _kept(self, g: Tensor, basis: Tensor) -> Tensor:
        inside = (g @ basis) @ basis.mT  # (b, T, width)
        return g - inside if self.recipe.project == "normal" else inside

    def _random(self, layer: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.recipe.seed * 1009 + layer)
        rows = torch.randn(self.model.config.width, self.recipe.rank, generator=generator)
        return torch.linalg.qr(rows).Q.to(self.held_out.device)  # (width, rank)


@torch.no_grad()
def principal_directions(model: Transformer, ids: Tensor, rank: int) -> list[Tensor]:
    """Return the strongest principal directions of every layer's output on these tokens, (width, rank) each."""
    outputs: list[Tensor] = []
    training = model.training
    with ExitStack() as cleanup:
        for block in model.blocks:
            cleanup.callback(block.register_forward_hook(lambda _m, _i, out: outputs.append(out)).remove)
        model.eval()
        cleanup.callback(model.train, training)
        model(ids)
    return [_top(out.flatten(0, 1), rank) for out in outputs]


def _top(x: Tensor, rank: int) -> Tensor:
    x = (x - x.mean(0)).double()
    return torch.linalg.eigh(x.mT @ x).eigenvectors[:, -rank:].flip(1).to(torch.float32)
