"""How much branches write at a due step, against an independent computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training import LAYERS, held_out, records, small_model, tracked, value


def expected(model: Any, layer: int) -> tuple[float, float]:
    """write_ratio and write_cosine of the feed-forward branch of a pre-norm block, from plain hooks."""
    seen: dict[str, Tensor] = {}
    block = model.transformer.h[layer]
    handles = [
        block.ln_2.register_forward_pre_hook(lambda _m, args: seen.__setitem__("stream", args[0].double())),
        block.mlp.register_forward_hook(lambda _m, _a, out: seen.__setitem__("branch", out.double())),
    ]
    model.eval()
    with torch.no_grad():
        model(input_ids=held_out()["input_ids"])
    model.train()
    for handle in handles:
        handle.remove()
    b, x = seen["branch"].flatten(0, 1), seen["stream"].flatten(0, 1)
    ratio = float(b.square().sum() / x.square().sum()) ** 0.5
    return ratio, float(torch.nn.functional.cosine_similarity(b, x).mean())


def test_every_branch_has_its_ratio_and_cosine_by_default(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, gradients=False) as tracker:
        tracker.probe(0)
    sites = {f"{kind}.{layer}" for kind in ("attn", "mlp") for layer in range(LAYERS)}
    assert {r.site for r in records(tmp_path, metric="write_ratio")} == sites
    for layer in range(LAYERS):
        ratio, cosine = expected(model, layer)
        found = value(tmp_path, site=f"mlp.{layer}", metric="write_ratio", variant={"over": "all"})
        assert found == pytest.approx(ratio, rel=1e-5)
        assert value(tmp_path, site=f"mlp.{layer}", metric="write_cosine") == pytest.approx(cosine, abs=1e-5)
    (found_n,) = {r.n for r in records(tmp_path, metric="write_cosine")}
    assert found_n == held_out()["input_ids"].numel()


def test_padding_does_not_count(tmp_path: Path) -> None:
    ids = held_out()["input_ids"]
    mask = torch.ones_like(ids)
    mask[::2, -5:] = 0
    model = small_model()
    for name, probe in (("padded", {"input_ids": ids, "attention_mask": mask}), ("whole", {"input_ids": ids})):
        with tracked(tmp_path / name, model, gradients=False, probe=probe) as tracker:
            tracker.probe(0)
    (padded,) = records(tmp_path / "padded", site="mlp.0", metric="write_cosine")
    (whole,) = records(tmp_path / "whole", site="mlp.0", metric="write_cosine")
    assert padded.n == int(mask.sum())
    assert whole.n == ids.numel()
    assert padded.value != whole.value


def test_branches_are_not_measured_if_the_metrics_are_chosen(tmp_path: Path) -> None:
    with tracked(tmp_path, small_model(), gradients=False, metrics=["mean_cosine"]) as tracker:
        tracker.probe(0)
    assert not records(tmp_path, metric="write_ratio")
