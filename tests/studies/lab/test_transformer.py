"""The lab's model: every switch does what its formula says, and capture sees it like any other module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anisoscope.hooks import find_layout, observe_sites
from anisoscope.measurement.measure_model import measure
from anisoscope.stats.head_scores import Attention, Heads
from anisoscope.studies.lab.transformer import CHOICES, Config, Transformer
from tests.oracles.lab import attention_weights

SMALL: dict[str, Any] = {"vocabulary": 23, "context": 12, "layers": 3, "width": 16, "heads": 2}


def tokens(rows: int = 3, length: int = 12) -> Tensor:
    return torch.randint(0, 23, (rows, length), generator=torch.Generator().manual_seed(1))


def seen(model: Transformer, kinds: list[str], ids: Tensor, **inputs: Tensor) -> dict[str, object]:
    found: dict[str, object] = {}
    example = {"input_ids": ids[:1]}
    with torch.no_grad(), observe_sites(model, kinds, _keep(found), layout=find_layout(model, example)) as watch:
        model(ids, **inputs)
    watch.require(list(found))
    return found


def _keep(found: dict[str, object]) -> Callable[[Any, Any], None]:
    return lambda site, x: found.__setitem__(str(site), x.clone() if isinstance(x, Tensor) else x)


@pytest.mark.parametrize("kind", CHOICES["attention"])
@pytest.mark.parametrize("norm_at", CHOICES["norm_at"])
def test_capture_sees_every_layer_of_every_kind_of_attention(kind: str, norm_at: str) -> None:
    model = Transformer(Config(**SMALL, attention=kind, norm_at=norm_at)).eval()
    found = seen(model, ["embed", "resid", "attn", "mlp", "q", "k", "pattern", "final"], tokens())
    layers = [name for name in found if name.startswith("resid")]
    assert layers == ["resid.0", "resid.1", "resid.2"]
    assert ("final" in found) == (norm_at == "pre")
    assert [name for name in found if name.startswith("pattern")] == (
        [] if kind == "none" else ["pattern.0", "pattern.1", "pattern.2"]
    )
    if norm_at == "pre":
        final = found["final"]
        assert isinstance(final, Tensor)
        assert torch.equal(model.head(final), model(tokens()).logits)


@pytest.mark.parametrize("kind", [kind for kind in CHOICES["attention"] if kind != "none"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_attention_weights_follow_the_formula_of_their_kind(kind: str, causal: bool, padded: bool) -> None:
    config = Config(**SMALL, attention=kind, causal=causal, objective="masked", temperature=0.5, init_scale=30)
    model = Transformer(config).eval()
    mask = torch.ones(3, 12)
    mask[1:, 9:] = 0
    found = seen(model, ["q", "k", "pattern"], tokens(), **({"attention_mask": mask} if padded else {}))
    layer: Any = model.blocks[1].attn
    x = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(2))
    visible = torch.ones(12, 12, dtype=torch.bool).tril() if causal else torch.ones(12, 12, dtype=torch.bool)
    visible = (visible & mask.bool()[:, None, None, :] if padded else visible).expand(3, 1, 12, 12)
    with torch.no_grad():
        q, k = layer._queries_and_keys(x, model.rotation)
        expected = attention_weights(kind, q.numpy(), k.numpy(), visible.numpy(), temperature=0.5)
        values = layer.v_proj(x).view(3, 12, 2, 8).transpose(1, 2)
        mixed = (torch.from_numpy(expected) @ values.double()).transpose(1, 2).reshape(3, 12, 16).float()
        out = layer(x, model.rotation, visible if padded else None)
    torch.testing.assert_close(out, layer.o_proj(mixed), rtol=1e-4, atol=1e-5)
    assert isinstance(found["pattern.1"], Heads)
    assert found["pattern.1"].q.shape == (3, 2, 12, 8)


@pytest.mark.parametrize("kind", ["sigmoid", "off-by-one"])
def test_the_pattern_of_marked_attention_is_its_weights_over_their_sum(kind: str) -> None:
    model = Transformer(Config(**SMALL, attention=kind, init_scale=30)).eval()
    found = seen(model, ["pattern", "q", "k"], tokens())
    heads, q, k = found["pattern.2"], found["q.2"], found["k.2"]
    assert isinstance(heads, Heads)
    assert isinstance(q, Tensor)
    assert isinstance(k, Tensor)
    visible = torch.ones(12, 12, dtype=torch.bool).tril().expand(3, 1, 12, 12)
    weights = torch.from_numpy(attention_weights(kind, q.numpy(), k.numpy(), visible.numpy()))
    counts = torch.ones(3, 12, dtype=torch.bool)
    got, expected = Attention.of(heads, counts), Attention.of_probabilities(weights.float(), counts)
    for name in ("rows", "entropy", "sink", "largest", "logit_std"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-4, atol=1e-4)


def test_a_causal_model_does_not_look_ahead_and_an_encoder_does() -> None:
    ids = tokens()
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 23
    for kind in CHOICES["attention"]:
        for causal in (True, False):
            model = Transformer(Config(**SMALL, attention=kind, causal=causal, objective="masked")).eval()
            before, after = model(ids).logits[:, :7], model(other).logits[:, :7]
            same = torch.allclose(before, after, atol=1e-6)
            assert same == (causal or kind == "none"), (kind, causal)


# not sigmoid: its offset −ln T counts the padded window
@pytest.mark.parametrize("kind", [kind for kind in CHOICES["attention"] if kind != "sigmoid"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_on_the_right_changes_nothing(kind: str, causal: bool) -> None:
    model = Transformer(Config(**SMALL, attention=kind, causal=causal, objective="masked")).eval()
    ids, mask = tokens(), torch.ones(3, 12)
    mask[:, 8:] = 0
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[:, :8], model(ids[:, :8]).logits)


def test_twins_have_the_same_initial_weights() -> None:
    base = Transformer(Config(**SMALL), seed=3).state_dict()
    changes: list[dict[str, Any]]
    changes = [{"attention": "uniform"}, {"norm_at": "post"}, {"positions": "learned"}, {"layers": 5}]
    for change in changes:
        twin = Transformer(Config(**{**SMALL, **change}, init="bert"), seed=3).state_dict()
        shared = [name for name in base if name in twin and name.endswith("weight")]
        assert len(shared) > 10
        for name in shared:
            shrunk = name.endswith(("o_proj.weight", "down.weight"))
            torch.testing.assert_close(base[name] * (math.sqrt(6) if shrunk else 1), twin[name])
    matrices = [base[f"blocks.{i}.attn.{name}.weight"] for i in range(3) for name in ("q_proj", "k_proj", "v_proj")]
    assert len({tuple(matrix[0].tolist()) for matrix in matrices}) == 9  # no two parts share their numbers
    assert not torch.equal(base["tokens.weight"], Transformer(Config(**SMALL), seed=4).state_dict()["tokens.weight"])


@pytest.mark.parametrize("init", ["gpt2", "bert"])
def test_initial_weights_have_the_requested_spread(init: str) -> None:
    model = Transformer(Config(vocabulary=50, width=128, layers=8, init=init, init_scale=3))
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.ndim == 2}
    assert spread["tokens.weight"] == pytest.approx(0.06, rel=0.05)
    assert spread["blocks.5.mlp.up.weight"] == pytest.approx(0.06, rel=0.05)
    expected = 0.06 / 4 if init == "gpt2" else 0.06
    assert spread["blocks.5.attn.o_proj.weight"] == pytest.approx(expected, rel=0.05)


def test_rotary_logits_depend_on_the_distance_alone() -> None:
    model = Transformer(Config(**SMALL, init_scale=30)).eval()
    x = torch.randn(1, 1, 16).expand(1, 12, 16)  # the same token everywhere
    layer: Any = model.blocks[0].attn
    q, k = layer._queries_and_keys(x, model.rotation)
    logits = (q @ k.mT)[0, 0].detach()
    for distance in range(-11, 12):
        diagonal = logits.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert float(logits.std()) > 1e-3


def test_labels_of_the_next_token_objective_are_shifted_inside() -> None:
    ids = tokens()
    model = Transformer(Config(**SMALL))
    logits = model(ids).logits[:, :-1].log_softmax(-1)
    expected = -logits.gather(2, ids[:, 1:, None]).mean()
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    labels = torch.full_like(ids, -100)
    labels[:, 3] = ids[:, 3]
    masked = Transformer(Config(**SMALL, objective="masked"))
    logits = masked(ids).logits[:, 3].log_softmax(-1)
    torch.testing.assert_close(masked(ids, labels=labels).loss, -logits.gather(1, ids[:, 3, None]).mean())


def test_centring_subtracts_the_mean_of_earlier_batches_only() -> None:
    plain, centred = Transformer(Config(**SMALL)), Transformer(Config(**SMALL, centring=1.0))
    torch.testing.assert_close(plain(tokens()).logits, centred(tokens()).logits)
    centred.eval()
    found = seen(centred, ["resid.0"], tokens())["resid.0"]
    assert isinstance(found, Tensor)
    assert float(found.mean((0, 1)).norm()) < 1e-5  # the mean it has seen is the mean of this very batch
    before = {name: value.clone() for name, value in centred.state_dict().items()}
    centred(tokens(2))
    assert all(torch.equal(value, before[name]) for name, value in centred.state_dict().items())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attention": "sofmax"}, "choose one of softmax"),
        ({"width": 130}, "does not divide into 4 heads"),
        ({"width": 12}, "even width"),
        ({"causal": False}, "sees its next token"),
        ({"layers": 0}, "from 1 to"),
        ({"temperature": 0.0}, "positive"),
    ],
)
def test_an_impossible_configuration_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**wrong)  # type: ignore[arg-type]


def test_a_window_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="context of 12"):
        Transformer(Config(**SMALL))(tokens(1, 13))


def test_measure_accepts_the_model() -> None:
    model = Transformer(Config(**SMALL, attention="sigmoid")).eval()
    batches = [{"input_ids": tokens(8), "attention_mask": torch.ones(8, 12)}]
    run = measure(model, batches, metrics=["mean_cosine", "attention_entropy", "q_drift"], sites=["resid", "pattern"])
    found = {(r.metric, r.site): r.value for r in run.records() if r.tokens == "all"}
    assert all(found[("mean_cosine", f"resid.{i}")] is not None for i in range(3))
    assert found[("attention_entropy", "pattern.1")] == pytest.approx(1.0, abs=0.01)


def test_a_decoder_continues_its_prompts_with_samples_of_its_own_law() -> None:
    model = Transformer(Config(**SMALL, init_scale=20.0)).eval()  # large weights: one token is nearly certain
    prompt = tokens(2, 4)
    torch.manual_seed(0)
    ids = model.generate(prompt, 5, temperature=1e-3, pad_token_id=0)
    assert torch.equal(ids[:, :4], prompt)
    assert torch.equal(ids[:, 4:], model(ids).logits[:, 3:-1].argmax(-1))  # at temperature 0 the likeliest token
    with torch.no_grad():
        law = model(prompt[:1]).logits[0, -1].softmax(-1)
    drawn = model.generate(prompt[:1].expand(4000, -1), 1)[:, -1]
    share = torch.bincount(drawn, minlength=23) / 4000
    assert (share - law).abs().max() < 0.04  # five standard errors of a share of 1/2


def test_only_models_of_the_next_token_generate() -> None:
    assert Transformer(Config(**SMALL)).can_generate()
    assert not Transformer(Config(**SMALL, causal=False, objective="masked")).can_generate()
