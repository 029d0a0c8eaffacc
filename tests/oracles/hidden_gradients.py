"""The slow twin of the tracker's gradients: run the batch, keep every block's output and its gradient, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def hidden_gradients(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    batches: Sequence[Mapping[str, Tensor]],
    loss: Callable[[Any], Tensor] = lambda output: output.loss,
) -> list[Array]:
    """d loss/d h after each block, the rows of all batches one below the other, (n, d) each."""
    rows: list[list[Array]] = [[] for _ in blocks]
    for batch in batches:
        outputs: list[Tensor] = []
        hooks = [b.register_forward_hook(lambda _m, _a, out, to=outputs: to.append(first(out))) for b in blocks]
        total = loss(model(**batch))
        for hook in hooks:
            hook.remove()
        for place, gradient in enumerate(torch.autograd.grad(total, outputs)):
            rows[place].append(gradient.double().reshape(-1, gradient.shape[-1]).numpy())
    return [np.concatenate(each) for each in rows]


def first(output: Any) -> Tensor:
    found = output if isinstance(output, Tensor) else output[0]
    assert isinstance(found, Tensor)
    return found


def isoscore(g: Array) -> float:
    values = np.linalg.eigvalsh(np.cov(g.T))
    ratio = values.sum() ** 2 / (values**2).sum()
    return float((ratio - 1) / (g.shape[1] - 1))


def pca_energy(h: Array, g: Array, rank: int) -> float:
    """The share of the gradients' squared length along the top principal directions of the rows h."""
    _, _, axes = np.linalg.svd(h - h.mean(0), full_matrices=False)
    return float(((g @ axes[:rank].T) ** 2).sum() / (g**2).sum())
