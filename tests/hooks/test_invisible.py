"""A probe leaves the model as it was: modes, gradients, hooks, buffers and random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training import hooks_of, small_model, tracked

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # for tests that use no particular metric


def test_a_probe_changes_no_modes_gradients_or_hooks(tmp_path: Path) -> None:
    model = small_model()
    model.transformer.h[1].eval()  # a part that the user froze
    model.transformer.wte.weight.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    before = [(m.training, hooks_of(m)) for m in model.modules()]
    requires_grad = [p.requires_grad for p in model.parameters()]
    tracker = tracked(tmp_path, model, gradients=False)
    tracker.probe(0)
    assert [(m.training, hooks_of(m)) for m in model.modules()] == before
    assert [p.requires_grad for p in model.parameters()] == requires_grad
    assert all(p.grad is None or bool((p.grad == 1).all()) for p in model.parameters())


class Running(nn.Module):
    """A model that counts its own forwards in a buffer, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        self.calls += 1
        return self.inner(input_ids=input_ids, labels=labels)


def test_buffers_that_a_forward_writes_to_are_restored(tmp_path: Path) -> None:
    model = Running()
    tracker = tracked(tmp_path, model, **CHEAP)
    tracker.probe(0)
    assert int(model.calls) == 0


@pytest.mark.parametrize("what", [RuntimeError("boom"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_an_exception_during_a_probe_leaves_the_model_as_it_was(tmp_path: Path, what: BaseException) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model)
    drawn = torch.get_rng_state()

    def fail(*_: Any) -> None:
        torch.rand(3)
        raise what

    handle = model.transformer.h[1].register_forward_hook(fail)
    with pytest.raises(type(what)):
        tracker.probe(0)
    handle.remove()
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), drawn)
