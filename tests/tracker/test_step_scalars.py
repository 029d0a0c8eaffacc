"""Scalars of every step against copies of all gradients and weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode

from anisoscope.distributed import joined_ranks
from anisoscope.errors import InputError
from anisoscope.hooks import find_layout
from anisoscope.tracker.step_scalars import ALL, REST, StepScalars, StepValues, UpdateSample, layer_weights
from tests.ranks import join_group, leave_group
from tests.training import LAYERS, small_model, words

SITES = [*(f"resid.{i}" for i in range(LAYERS)), REST, ALL]
Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "fused AdamW": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "AdamW with foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
}


def groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of each site by their names, the slow way."""
    found: dict[str, list[nn.Parameter]] = {site: [] for site in SITES}
    for name, parameter in model.named_parameters():
        layer = name.split("h.")[1].split(".")[0] if ".h." in name else None
        found[REST if layer is None else f"resid.{layer}"].append(parameter)
        found[ALL].append(parameter)
    return found


def length(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(x.detach().double().square().sum()) for x in tensors))


def trained(
    model: Any, optimizer: Optimizer, steps: int = 4, **options: Any
) -> tuple[list[StepValues], list[StepValues]]:
    """Train, and return the values of `StepScalars` and those of whole copies."""
    scalars, optimiser, expected = StepScalars(model, find_layout(model), **options), optimizer(model.parameters()), []
    own = groups(model)
    for step in range(steps):
        scalars.after_update()
        before = {site: [p.detach().clone() for p in parameters] for site, parameters in own.items()}
        loss = model(**words(step)).loss
        loss.backward()
        scalars.after_backward(step, loss=loss, learning_rate=0.5)
        norms = {site: length([p.grad for p in parameters if p.grad is not None]) for site, parameters in own.items()}
        optimiser.step()
        optimiser.zero_grad()
        ratios = {
            site: length([p.detach() - old for p, old in zip(own[site], before[site], strict=True)])
            / length([p.detach() for p in own[site]])
            for site in SITES
        }
        expected.append(StepValues(step, norms, ratios, float(loss.detach()), 0.5))
    scalars.after_update()
    return scalars.read(), expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scalars_equal_those_of_whole_copies_with_any_optimiser(name: str) -> None:
    got, expected = trained(small_model(), OPTIMIZERS[name])
    assert [each.step for each in got] == [0, 1, 2, 3]
    for ours, theirs in zip(got, expected, strict=True):
        assert list(ours.gradient_norm) == SITES
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-5)
        assert (ours.loss, ours.learning_rate) == (theirs.loss, 0.5)
        # 2,048 of up to 4,096 entries per matrix: the standard error is 1.6 % per matrix and less per layer
        assert ours.update_ratio == pytest.approx(theirs.update_ratio, rel=0.08)


def test_small_parameters_count_as_a_whole() -> None:
    got, expected = trained(small_model(n_embd=16, n_head=2), OPTIMIZERS["AdamW"])
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.update_ratio == pytest.approx(theirs.update_ratio, rel=1e-5)


def test_the_error_of_the_sample_is_the_documented_one() -> None:
    """Over 200 seeds the estimate of a matrix of Gaussian entries has no bias and an error of √(2/m)/2 = 1.6 %."""
    draw = torch.Generator().manual_seed(0)
    linear = nn.Linear(384, 1024, bias=False)
    nn.init.normal_(linear.weight, generator=draw)
    exact = length([linear.weight])
    weights = one_group(linear)
    found = []
    for seed in range(200):
        sample = UpdateSample(weights, seed)
        assert sample.squares() is None
        squares = sample.squares()
        assert squares is not None
        assert squares[0].tolist() == [0.0]
        found.append(float(squares[1].sqrt()) / exact)
    mean, deviation = float(torch.tensor(found).mean()), float(torch.tensor(found).std())
    # neighbouring seeds share entries, so the mean over seeds is as exact as about 100 of them
    assert abs(mean - 1) < 5 * 0.016 / 10
    assert 0.008 < deviation < 0.024


def one_group(module: nn.Module) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(module), nn.Sequential(nn.ReLU(), nn.Linear(1, 1))])

    model = Model()
    model.layers[1].requires_grad_(False)
    return layer_weights(model, find_layout(model))


def test_the_runs_of_a_matrix_start_in_every_part_of_its_rows_and_columns() -> None:
    """384 columns, and a size that 128 evenly spaced runs would divide without a remainder."""
    linear = nn.Linear(384, 1536, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(384.0).expand(1536, 384))
    columns = UpdateSample(one_group(linear))._now()
    assert len(columns) == 2048
    assert int(torch.histc(columns, 8, 0, 384).min()) > 100
    with torch.no_grad():
        linear.weight.copy_(torch.arange(1536.0)[:, None].expand(1536, 384))
    rows = UpdateSample(one_group(linear))._now()
    assert int(torch.histc(rows, 8, 0, 1536).min()) > 100


def test_frozen_parameters_and_missing_gradients_do_not_count() -> None:
    model = small_model()
    model.transformer.h[0].requires_grad_(False)
    scalars = StepScalars(model, find_layout(model))
    assert scalars.sites == ("resid.1", "resid.2", REST)
    scalars.after_backward(0)
    (values,) = scalars.read()
    assert values.gradient_norm == dict.fromkeys(["resid.1", "resid.2", REST, ALL], 0.0)
    assert values.update_ratio == {}
    assert values.loss is None
    model.requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameter"):
        StepScalars(model, find_layout(model))


def test_the_loss_scale_is_divided_out_and_half_precision_does_not_overflow() -> None:
    model = small_model()
    scalars = StepScalars(model, find_layout(model))
    for parameter in model.parameters():
        parameter.data = parameter.data.half()
        parameter.grad = torch.full_like(parameter, 6e4)
    scalars.after_backward(0)
    scalars.after_backward(1, scale=torch.tensor(256.0))
    plain, scaled = scalars.read()
    total = sum(p.numel() for p in model.parameters())
    assert plain.gradient_norm[ALL] == pytest.approx(float(torch.tensor(6e4).half()) * math.sqrt(total), rel=1e-5)
    assert scaled.gradient_norm[ALL] == pytest.approx(plain.gradient_norm[ALL] / 256)


def test_weights_that_are_not_finite_give_numbers_that_are_not_finite() -> None:
    model = small_model()
    scalars = StepScalars(model, find_layout(model))
    scalars.after_update()
    model(**words(0)).loss.backward()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.bias.grad[0] = math.nan
        model.transformer.h[1].mlp.c_fc.bias[0] = math.inf
    scalars.after_backward(0, loss=torch.tensor(math.nan))
    scalars.after_update()
    (values,) = scalars.read()
    assert math.isnan(values.gradient_norm["resid.1"])
    assert math.isfinite(values.gradient_norm["resid.0"])
    assert not math.isfinite(values.update_ratio["resid.1"])
    assert values.loss is not None
    assert math.isnan(values.loss)


def test_parameters_that_move_in_memory_are_followed() -> None:
    model = small_model()
    scalars = StepScalars(model, find_layout(model))
    scalars.after_update()
    scalars.after_backward(0)
    for parameter in model.parameters():
        parameter.data = parameter.data * 2
    scalars.after_update()
    assert scalars.read()[0].update_ratio == pytest.approx(dict.fromkeys(SITES, 0.5))


def scalars_of_two_steps(model: Any, **options: Any) -> list[StepValues]:
    scalars = StepScalars(model, find_layout(model), **options)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        scalars.after_update()
        model(**words(step)).loss.backward()
        scalars.after_backward(step)
        optimiser.step()
        optimiser.zero_grad()
    scalars.after_update()
    return scalars.read()


NARROW: Any = {"n_embd": 16, "n_head": 2, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}


def shard_and_train(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, 2)
    model = small_model(tie_word_embeddings=False, **NARROW)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    values = scalars_of_two_steps(model, ranks=joined_ranks())
    (folder / f"{rank}.json").write_text(json.dumps([[v.gradient_norm, v.update_ratio] for v in values]))
    leave_group()


@pytest.mark.slow
def test_two_ranks_with_sharded_parameters_give_the_scalars_of_one_process(tmp_path: Path) -> None:
    spawn(shard_and_train, args=(tmp_path,), nprocs=2)
    expected = scalars_of_two_steps(small_model(tie_word_embeddings=False, **NARROW))
    for rank in range(2):
        for got, one in zip(json.loads((tmp_path / f"{rank}.json").read_text()), expected, strict=True):
            assert got[0] == pytest.approx(one.gradient_norm, rel=1e-4)
            assert got[1] == pytest.approx(one.update_ratio, rel=1e-3)


class _Reads(TorchDispatchMode):
    """Counts what a GPU would have to wait for: numbers and shapes that the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default"):
            self.waits.append(str(func))
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_the_device_before_the_values_are_read() -> None:
    model = small_model()
    scalars = StepScalars(model, find_layout(model))
    loss = model(**words(0)).loss
    loss.backward()
    with _Reads() as reads:
        for step in range(3):
            scalars.after_update()
            scalars.after_backward(step, loss=loss)
        assert not reads.waits
        scalars.read()
    assert reads.waits
