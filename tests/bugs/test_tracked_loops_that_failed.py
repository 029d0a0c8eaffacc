"""Trainings that the tracker could not follow: features in one dict, compiled models with an unused output, NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from anisoscope import Run
from anisoscope.records import Record
from anisoscope.schedule import every
from anisoscope.tangent import Tangent
from anisoscope.tracker import Tracker
from tests.oracles.hidden_gradients import hidden_gradients, pca_energy
from tests.training import WORDS, Stack, held_out, records, small_model, tracked, train, value, words

hf: Any = transformers
FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "scalars": False}


class Encoder(nn.Module):
    """A model that takes its features as one dict, as those of sentence-transformers do, and pools its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model().transformer

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.inner(**features).last_hidden_state  # (b, T, d)
        return {"sentence_embedding": hidden.mean(1)}


def features(seed: int, items: int = 4) -> dict[str, Tensor]:
    ids = words(seed, items)["input_ids"]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_a_model_that_takes_one_dict_of_features_is_tracked(tmp_path: Path) -> None:
    model = Encoder()
    with Tracker(model, features(10_000, 8), tmp_path / "run", schedule=every(1), **FEW) as tracker:
        tracker.probe(0)
        anchors, others = (model(features(seed))["sentence_embedding"] for seed in (1, 2))
        (anchors - others).square().sum().backward()
        tracker.watch(0)
    (gradient,) = records(tmp_path, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * 4 * 16  # the tokens of both forwards
    (cosine,) = records(tmp_path, site="resid.1", metric="mean_cosine", tokens="all")
    assert cosine.n == 8 * 16


class LogitsAndLoss(nn.Module):
    """A plain model in the manner of nanoGPT: it returns logits and loss, and only the loss is used."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.stack(input_ids)["logits"]
        return logits, nn.functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def test_a_compiled_model_that_returns_logits_and_loss_is_replayed(tmp_path: Path) -> None:
    norms = []
    for name in ("eager", "compiled"):
        model: Any = LogitsAndLoss()
        if name == "compiled":
            model = torch.compile(model, backend="aot_eager")
        with tracked(tmp_path / name, model, **FEW) as tracker:
            tracker.probe(0)
            model(**words(0))[1].backward()
            tracker.watch(0)
        norms.append([r.value for r in records(tmp_path / name, metric="gradient_norm")])
        torch.compiler.reset()
    assert None not in norms[1]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


class Logits(nn.Module):
    """A plain model in the manner of torchtune: it takes tokens by position and returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.stack(tokens)["logits"]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_that_computes_its_loss_from_logits_is_tracked(tmp_path: Path, compiled: bool) -> None:
    weights = []
    for name in ("alone", "tracked"):
        model = Logits()
        called: Any = torch.compile(model, backend="aot_eager") if compiled else model
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        held = held_out()["input_ids"]
        tracker = Tracker(called, held, tmp_path / "run", schedule=every(2)) if name == "tracked" else None
        for step in range(3):
            tokens = words(step)["input_ids"]
            if tracker is not None:
                tracker.probe(step)
            loss = nn.functional.cross_entropy(called(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            if tracker is not None:
                tracker.watch(step, loss=loss)
            optimiser.step()
            optimiser.zero_grad()
        if tracker is not None:
            tracker.close()
        weights.append(model.state_dict())
        torch.compiler.reset()
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())
    found = records(tmp_path)
    assert not [r.note for r in found if r.value is None]
    for site in ("resid.2", "grad.resid.2"):
        assert {r.step for r in found if r.site == site} >= {0, 2}
    assert len([r for r in found if r.metric == "train_loss"]) == 3


def vit() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return hf.ViTForImageClassification(hf.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)).train()


def images(seed: int, items: int) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        "pixel_values": torch.randn(items, 3, 32, 32, generator=chance),
        "labels": torch.randint(0, 5, (items,), generator=chance),
    }


def test_the_bases_of_an_image_model_leave_out_the_class_token(tmp_path: Path) -> None:
    """With the class token, energies differ by about a thousandth: bases follow the policy `no-sink`."""
    model, held = vit(), images(10_000, 8)
    options: dict[str, Any] = {**FEW, "schedule": every(1), "tangent": Tangent(ranks=[4], nulls=["orientation"])}
    with Tracker(model, held, tmp_path / "run", **options) as tracker:
        torch.manual_seed(7)
        tracker.probe(0)
        model(**images(1, 16)).loss.backward()
        tracker.watch(0)
    again = vit()
    blocks = list(again.vit.layers)
    kept: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _m, _a, out: kept.append(out)) for block in blocks]
    with torch.no_grad():
        again.eval()(**held)
    for hook in hooks:
        hook.remove()
    torch.manual_seed(7)
    for layer, g in enumerate(hidden_gradients(again.train(), blocks, [images(1, 16)])):
        patches = kept[layer][:, 1:].double().flatten(0, 1).numpy().astype(np.float64)
        found = value(tmp_path, site=f"grad.resid.{layer}", metric="gradient_energy")
        assert found == pytest.approx(pca_energy(patches, g, 4), rel=1e-5)


def broken_at(layer: int) -> Any:
    model = small_model()
    with torch.no_grad():
        model.transformer.h[layer].mlp.c_fc.weight[0, 0] = float("nan")
    return model


def test_a_model_that_gives_nan_is_recorded_with_the_site_where_it_begins(tmp_path: Path) -> None:
    model = broken_at(1)
    with tracked(tmp_path, model) as tracker:
        train(model, tracker, range(3))
    found = records(tmp_path, metric="not_finite", step=0)
    assert [r.site for r in found] == ["resid.1", "resid.2", "final"]
    assert found[0].value == 1.0
    assert "transformer.h.1.mlp.c_fc.weight" in (found[0].note or "")
    assert not [r for r in records(tmp_path) if "median norm" in (r.note or "")]
    assert {r.step for r in records(tmp_path)} == {0, 2}


def test_padding_that_is_nan_is_no_failure(tmp_path: Path) -> None:
    model = small_model()
    batch = held_out()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][:, 8:] = 0

    def spoil(_module: nn.Module, _args: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        return hidden.masked_fill(~batch["attention_mask"].bool()[: len(hidden), : hidden.shape[1], None], torch.nan)

    model.transformer.h[2].register_forward_hook(spoil)
    with Tracker(model, batch, tmp_path / "run", schedule=every(1), gradients=False, **FEW) as tracker:
        tracker.probe(0)
    found: list[Record] = list(Run.open(tmp_path / "run").records())
    assert {r.metric for r in found} == {"mean_cosine"}
    assert all(r.value is not None for r in found)
