"""Routers of mixtures of experts against what the models report themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.hooks.routers import routing_of
from anisoscope.stats.router_sums import Routing
from tests.tiny_models import text

hf: Any = transformers
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, Any] = {
    "mixtral": lambda: hf.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **SMALL, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8
    ),
    "olmoe": lambda: hf.OlmoeConfig(**SMALL, num_experts=4, num_experts_per_tok=1),
}


def routings(model: nn.Module, batch: dict[str, Tensor], **more: Any) -> dict[str, Routing]:
    found: dict[str, Routing] = {}
    layout = find_layout(model, {**batch, **more})
    with (
        torch.no_grad(),
        observe_sites(model, ["router"], lambda s, x: found.update({str(s): x}), layout=layout) as log,
    ):
        model(**batch, **more)
    log.require(list(found))
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_routing_equals_the_logits_that_the_model_returns(name: str) -> None:
    config = CONFIGS[name]()
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # some routers start at zero
    found = routings(model, text(), output_router_logits=True)
    with torch.no_grad():
        expected = model(**text(), output_router_logits=True).router_logits
    assert list(found) == ["router.0", "router.1"]
    for routing, logits in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(routing.logits.flatten(0, 1), logits)
        top = logits.topk(config.num_experts_per_tok, dim=-1).indices
        assert torch.equal(routing.chosen.flatten(0, 1), torch.zeros_like(logits).scatter(1, top, 1.0).bool())


def test_switch_routers_of_encoder_and_decoder_are_seen_with_their_capacity() -> None:
    config = hf.SwitchTransformersConfig(
        vocab_size=99, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2, num_experts=4,
        expert_capacity=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, dropout_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.SwitchTransformersModel(config).eval()
    found = routings(model, {**text(), "decoder_input_ids": text(7)["input_ids"]})
    assert list(found) == ["enc.router.1", "dec.router.1"]  # every second layer is sparse
    for routing in found.values():
        best = routing.logits.argmax(-1)
        for tokens, chosen in zip(best, routing.chosen, strict=True):
            given = [0] * 4
            for token, row in zip(tokens.tolist(), chosen, strict=True):  # the first two tokens of each expert
                given[token] += 1
                assert row.nonzero().flatten().tolist() == ([token] if given[token] <= 2 else [])


class Gated(nn.Module):
    """A mixture of experts with a plain linear gate."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))


def test_a_gate_that_returns_only_logits_chooses_the_largest() -> None:
    model, logits = Gated(), torch.tensor([[0.1, 0.9, 0.5], [2.0, -1.0, 0.0]])
    routing = routing_of(model, "gate", logits, torch.Size([1, 2]))
    assert routing.chosen.tolist() == [[[False, True, True], [True, False, True]]]
    model.top_k = "two"  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="none of the attributes top_k"):
        routing_of(model, "gate", logits, torch.Size([1, 2]))
    with pytest.raises(CaptureError, match="no logits"):
        routing_of(model, "gate", (torch.tensor([[1, 2]]),), torch.Size([1, 2]))


def test_dense_models_have_no_router() -> None:
    model = hf.AutoModelForCausalLM.from_config(hf.LlamaConfig(**SMALL))
    assert not [site for site in find_layout(model).sites() if site.kind == "router"]
