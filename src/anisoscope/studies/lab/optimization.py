"""Optimizer and learning rate of a lab training."""

from __future__ import annotations

import math

import torch

from anisoscope.studies.lab.experiment import Recipe
from anisoscope.studies.lab.transformer import Transformer


def make_optimizer(model: Transformer, recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW, Adam or SGD with momentum, without weight decay for norms and biases."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=0.9)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, betas=(0.9, 0.99))


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate of a step: a linear rise, then a cosine down to `floor` times the highest value.

    The cosine ends after the share `decay` of the steps; the rest of the training has the lowest rate.

    >>> recipe = Recipe(steps=100, warmup=0.1, learning_rate=1.0, floor=0.0)
    >>> [round(learning_rate(recipe, step), 3) for step in (0, 9, 55, 100)]
    [0.1, 1.0, 0.5, 0.0]
    """
    warmup = round(recipe.warmup * recipe.steps)
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    angle = math.pi * min(1.0, (step - warmup) / max(1, round(recipe.decay * recipe.steps) - warmup))
    return recipe.learning_rate * (recipe.floor + (1 - recipe.floor) * (1 + math.cos(angle)) / 2)
