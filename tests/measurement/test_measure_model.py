"""Measuring models: every number against one computed from the model's own hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anisoscope
from anisoscope import metrics
from anisoscope.errors import InputError
from tests.tiny_models import build

NAMES = ["mean_cosine", "spectral_anisotropy", "isoscore", "two_nn"]


def gpt2() -> tuple[Any, dict[str, Any]]:
    return build("gpt2")


def values(run: anisoscope.Run, metric: str, tokens: str = "all") -> dict[str, float]:
    return {r.site: r.value for r in run.records() if r.metric == metric and r.tokens == tokens and r.value is not None}


def test_values_of_every_layer_equal_those_of_the_hidden_states() -> None:
    model, inputs = gpt2()
    run = anisoscope.measure(model, [inputs], metrics=NAMES[:3], errors=False)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    counts = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(states[0].shape[:2]).bool()
    for layer, state in enumerate(states[:-1]):
        site = "embed" if layer == 0 else f"resid.{layer - 1}"
        rows = state[counts]
        for name in NAMES[:3]:
            assert values(run, name)[site] == pytest.approx(getattr(metrics, name)(rows), rel=1e-4), (site, name)


def test_no_sink_excludes_only_first_tokens_if_no_token_is_massive() -> None:
    model, inputs = gpt2()
    run = anisoscope.measure(model, [inputs], metrics=["mean_cosine"], errors=False)
    with torch.no_grad():
        state = model(**inputs, output_hidden_states=True).hidden_states[1]
    counts = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(state.shape[:2]).bool()
    first = counts & (counts.long().cumsum(1) == 1)
    expected = metrics.mean_cosine(state[counts & ~first])
    assert values(run, "mean_cosine", "no-sink")["resid.0"] == pytest.approx(expected, rel=1e-4)


class Massive(nn.Module):
    """Two blocks; the first makes the row of token 7 a thousand times as long, the second shrinks it back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([Scale(1000.0), Scale(0.001)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, input_ids)
        return x


class Scale(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.where((ids == 7)[..., None], x * self.by, x)


def test_a_token_flagged_at_one_layer_is_excluded_at_all_later_layers() -> None:
    torch.manual_seed(0)
    model = Massive().eval()
    ids = torch.randint(8, 64, (6, 40))
    ids[2, 11] = ids[4, 30] = 7
    run = anisoscope.measure(model, [{"input_ids": ids}], sites=["embed", "resid"], metrics=NAMES, errors=False)
    removed = run.info["removed"]
    assert removed["count"] == 2
    assert {(t["document"], t["position"], t["token"], t["site"]) for t in removed["tokens"]} == {
        (2, 11, 7, "resid.0"),
        (4, 30, 7, "resid.0"),
    }
    x = model.embedding(ids).detach()
    keep = torch.ones_like(ids, dtype=torch.bool)
    keep[:, 0] = False
    at_embed = metrics.spectral_anisotropy(x[keep])
    keep &= ids != 7
    later = metrics.spectral_anisotropy(x[keep])
    found = values(run, "spectral_anisotropy", "no-sink")
    assert found["embed"] == pytest.approx(at_embed, rel=1e-6)
    assert found["resid.0"] == pytest.approx(later, rel=1e-6)
    assert found["resid.1"] == pytest.approx(later, rel=1e-6)
    assert values(run, "spectral_anisotropy")["resid.0"] > 0.4


def test_batch_size_does_not_matter_and_errors_come_from_sequences() -> None:
    model, _ = gpt2()
    ids = torch.randint(0, 40, (96, 16), generator=torch.Generator().manual_seed(0))
    one = anisoscope.measure(model, [{"input_ids": ids}], metrics=NAMES)
    many = anisoscope.measure(model, [{"input_ids": part} for part in ids.split(7)], metrics=NAMES)
    assert [r.site for r in one.records()] == [r.site for r in many.records()]
    for a, b in zip(one.records(), many.records(), strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-5), (a.site, a.metric)
        if a.error is not None:
            assert a.error == pytest.approx(b.error, rel=1e-3, abs=1e-9), (a.site, a.metric)
    assert one.records()[0].error_kind == "jackknife-6-sequences"


def test_attention_of_every_head_equals_that_of_eager_probabilities() -> None:
    model, inputs = gpt2()
    run = anisoscope.measure(model, [inputs], sites=["pattern"], errors=False)
    frame = run.frame()
    entropy = frame[(frame["metric"] == "attention_entropy") & (frame["site"] == "pattern.0")]
    eager = type(model)(model.config)
    eager.load_state_dict(model.state_dict())
    eager.eval().set_attn_implementation("eager")
    with torch.no_grad():
        p = eager(**inputs, output_attentions=True).attentions[0].double().numpy()  # (b, h, t, t)
    mask = inputs["attention_mask"].bool().numpy() if "attention_mask" in inputs else np.ones(p.shape[0::2], bool)
    for head, value in zip(entropy["index"], entropy["value"], strict=True):
        rows = [
            -(w[w > 0] * np.log(w[w > 0])).sum() / np.log(mask[b, : t + 1].sum())
            for b in range(p.shape[0])
            for t in range(1, p.shape[2])
            if mask[b, t] and mask[b, : t + 1].sum() > 1
            for w in [p[b, head, t, : t + 1]]
        ]
        assert value == pytest.approx(np.mean(rows), rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "vit", "wav2vec2", "resnet", "mamba"])
def test_any_modality_and_architecture_is_measured(name: str) -> None:
    model, inputs = build(name)
    run = anisoscope.measure(model, [inputs, inputs], sites=["resid"], metrics=["mean_cosine"], errors=False)
    found = values(run, "mean_cosine")
    assert found
    assert all(-1 <= value <= 1 for value in found.values())
    assert ("no-sink" in {r.tokens for r in run.records()}) == (name != "resnet")


def test_a_folder_and_a_text_produce_a_run_on_disk(tmp_path: Path) -> None:
    from tests.model_folders import gpt2 as gpt2_folder

    folder = gpt2_folder(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{i % 17} and {i % 5}" for i in range(2000)))
    run = anisoscope.measure(folder, text=text, tokens=512, window=16, metrics=NAMES, out=tmp_path / "run")
    again = anisoscope.Run.open(tmp_path / "run")
    assert again.info["data"]["tokens"] == 512
    assert again.info["model"]["architecture"]
    assert len(list(again.records())) == len(list(run.records())) > 0
    assert all(r.error_kind is None or r.error_kind.endswith("windows") for r in again.records())


def test_errors_explain_what_to_do() -> None:
    model, inputs = gpt2()
    with pytest.raises(InputError, match="give text, images, audio or batches"):
        anisoscope.measure(model)
    with pytest.raises(InputError, match="No site named 'residd'"):
        anisoscope.measure(model, [inputs], sites=["residd"])
    with pytest.raises(InputError, match="Did you mean 'isoscore"):
        anisoscope.measure(model, [inputs], metrics=["isoscor"])
    with pytest.raises(InputError, match="The data is empty"):
        anisoscope.measure(model, [])
    with pytest.raises(InputError, match="The model has no tokenizer"):
        anisoscope.measure(model, ["text"])
    with pytest.raises(InputError, match="their columns are content, label"):
        anisoscope.measure(model, [{"content": "a text", "label": 1}])
    with pytest.raises(InputError, match="A batch is a dict of tensors"):
        anisoscope.measure(model, [1.5])


def test_evaluation_reports_how_many_sites_are_done(folder: Path, text: Path) -> None:
    calls: list[tuple[int, int]] = []
    request: dict[str, Any] = {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"], "errors": False}
    run = anisoscope.measure(folder, **request, on_evaluated=lambda done, total: calls.append((done, total)))
    sites = len(run.sites())
    assert calls == [(done, sites) for done in range(sites + 1)]


@pytest.mark.parametrize("rows", ["tokens", "mean"])
def test_provisional_numbers_come_once_and_change_nothing(
    folder: Path, text: Path, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anisoscope.measurement.measure_model.PROVISIONAL_TOKENS", 256)
    request: dict[str, Any] = {"text": text, "window": 32, "rows": rows, "metrics": ["isoscore", "two_nn"]}
    shown: list[tuple[int, list[anisoscope.Record]]] = []
    run = anisoscope.measure(folder, **request, tokens=1024, on_provisional=lambda *each: shown.append(each))
    [(tokens, records)] = shown
    assert tokens == 256
    alone = anisoscope.measure(folder, **request, tokens=256)
    first = {(r.site, r.tokens): r.value for r in alone if r.metric == "isoscore"}
    # sums in other blocks, since the number of tokens is another one: only rounding differs
    assert {(r.site, r.tokens): r.value for r in records} == pytest.approx(first, rel=1e-6)
    plain = anisoscope.measure(folder, **request, tokens=1024)
    assert [(r.value, r.error) for r in run] == [(r.value, r.error) for r in plain]
