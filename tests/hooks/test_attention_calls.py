"""Queries, keys and patterns that attention functions receive, against eager probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from anisoscope.errors import CaptureError
from anisoscope.hooks import attention_calls, expand, find_layout, observe_sites
from anisoscope.records import Site
from anisoscope.stats.head_scores import Attention, Heads, Scores
from tests.captures import BYPASS, STAGES, TWO_SIDED, captured
from tests.oracles import attention as oracle
from tests.tiny_models import LAYERS, build

NO_SDPA = ("gemma2", "mamba", *BYPASS, *STAGES)


@pytest.mark.parametrize("name", BYPASS)
def test_models_without_visible_queries_are_errors_that_name_the_alternative(name: str) -> None:
    model, batch = build(name)
    with torch.no_grad(), observe_sites(model, ["q", "k", "pattern"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match=r"q\.0, .*Capture q\.pre"):
        seen.require(expand(find_layout(model), ["q"]))
    seen.require(["pattern.0", "pattern.2"])


PATTERNS = [
    (name, attention)
    for name in (
        *("gpt2", "llama", "gpt_neox", "opt", "mistral", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "mixtral"),
        *("falcon", "falcon_alibi", "gptj", "bloom", "mpt", "canine", "bert", "albert", "distilbert", "modernbert"),
        *("t5", "bart", "vit", "beit", "clip_vision", "wav2vec2", "whisper", "jamba"),
    )
    for attention in ("sdpa", "eager")
    # In this version of transformers Falcon's eager path adds its biases twice, so the two ways differ.
    if attention == "eager" or name not in ("falcon_alibi", *NO_SDPA)
]


def eager_probabilities(name: str, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    model, _ = build(name, "eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    if name in TWO_SIDED:
        listed = {"enc.": output["encoder_attentions"], "dec.": output["decoder_attentions"]}
    else:
        deep = output["attentions"][1:-1] if name == "canine" else output["attentions"]
        listed = {"": deep}
    layers = [1] if name == "jamba" else range(LAYERS)
    return {f"{side}pattern.{i}": p for side, all_p in listed.items() for i, p in zip(layers, all_p, strict=False)}


def real_queries(name: str, batch: Mapping[str, Any], p: Tensor, side: str) -> Tensor:
    if "attention_mask" in batch and side != "dec" and name != "canine":
        mask: Tensor = batch["attention_mask"]
        return mask.bool()
    return torch.ones(p.shape[0], p.shape[2], dtype=torch.bool)


def assert_attention(a: Attention, p: Tensor, counts: Tensor) -> None:
    with torch.no_grad():
        logits = p.double().log()
    visible = (p > 0).numpy()
    expected = oracle.sums(logits.nan_to_num(neginf=0.0).numpy(), visible, counts.numpy())
    assert a.rows.tolist() == expected["rows"].tolist()
    for field in ("entropy", "sink", "largest", "logit_std"):
        mean = torch.as_tensor(expected[field]) / a.rows
        torch.testing.assert_close(getattr(a, field) / a.rows, mean, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "attention"), PATTERNS)
def test_patterns_equal_eager_probabilities(name: str, attention: str) -> None:
    model, batch = build(name, attention)
    got, _ = captured(model, batch, ["pattern"])
    expected = eager_probabilities(name, batch)
    assert sorted(got) == sorted(expected)
    for site, p in expected.items():
        counts = real_queries(name, batch, p, Site.parse(site).stack)
        assert_attention(Attention.of(got[site], counts), p, counts)
        only_logits = name in BYPASS or (name.startswith("falcon") and attention == "eager")
        assert isinstance(got[site], Scores if only_logits else Heads)
        assert Attention.of_probabilities(p, counts).rows.tolist() == Attention.of(got[site], counts).rows.tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_patterns_of_batches_padded_on_the_left_start_at_their_first_real_token(name: str, attention: str) -> None:
    model, batch = build(name, attention)
    left = {key: value.flip(1) for key, value in batch.items()}
    left["position_ids"] = (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    got, _ = captured(model, left, ["pattern"])
    counts = left["attention_mask"].bool()
    for site, p in eager_probabilities(name, left).items():
        p = torch.where(counts[:, None, :, None], p, 0.0)  # rows of padding hold anything
        assert_attention(Attention.of(got[site], counts), p, counts)


def test_patterns_without_padding_rely_on_causality_alone() -> None:
    model, batch = build("llama", "sdpa")
    batch = {"input_ids": batch["input_ids"]}
    got, _ = captured(model, batch, ["pattern"])
    assert got["pattern.0"].mask is None
    assert got["pattern.0"].causal
    assert got["pattern.0"].k.shape[1] == 2
    counts = torch.ones(2, 12, dtype=torch.bool)
    for site, p in eager_probabilities("llama", batch).items():
        assert_attention(Attention.of(got[site], counts), p, counts)


def test_captures_that_end_in_any_order_restore_the_interface() -> None:
    from transformers.modeling_utils import AttentionInterface

    before = vars(AttentionInterface)["get_interface"]
    (model, batch), (other, _) = build("llama"), build("qwen2")
    first, second = (attention_calls._wrapped_attention_interface(_Idle()) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with torch.no_grad(), observe_sites(other, ["q"], lambda site, x: None) as seen:
        other(**batch)
        model(**batch)
    seen.require(["q.0"])
    second.__exit__(None, None, None)
    assert vars(AttentionInterface)["get_interface"] is before


def test_another_model_in_another_thread_is_not_captured() -> None:
    (model, batch), (other, _) = build("llama"), build("qwen2")

    def run_other() -> None:
        with torch.no_grad():
            other(**batch)

    def sink(site: Site, x: Any) -> None:
        thread = Thread(target=run_other)
        thread.start()
        thread.join()

    with torch.no_grad(), observe_sites(model, ["q"], sink) as seen:
        model(**batch)
    assert seen.counts == {Site("q", layer): 1 for layer in range(LAYERS)}


class _Idle:
    """An observer for whom no attention ever runs."""

    def is_attending(self) -> bool:
        return False

    def on_heads(self, heads: Heads, unknown_pattern: str | None) -> None:
        raise AssertionError

    def on_scores(self, scores: Scores) -> None:
        raise AssertionError
