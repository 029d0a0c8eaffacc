"""The tangent test on models: true gradients against autograd, every kind of model, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope.errors import CaptureError, InputError
from anisoscope.tangent import Tangent, orthonormal
from anisoscope.tangent.basis import Basis
from tests.oracles import tangent as oracle
from tests.tangent_rows import batches
from tests.tiny_models import HomeMade, build

QUICK = Tangent(proxies=["pca"], ranks=[4], nulls=["orientation"])


def axes(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """A proxy that does not depend on the rows, so that a test can compute energies by itself."""
    return orthonormal(torch.eye(x.shape[1])[:, :rank], "axes", rank)


FIXED = Tangent(proxies=[axes], ranks=[4], nulls=["orientation", "error_shuffle"])


def value(run: anisoscope.Run, site: str, metric: str = "gradient_energy", **variant: Any) -> float:
    wanted = {"rows": "plain", **variant}
    matches = [
        r
        for r in run.records()
        if (r.site, r.metric) == (site, metric)
        and {"null", "stratum"} & set(r.variant) == {"null", "stratum"} & set(wanted)
        and all(r.variant.get(key) == entry for key, entry in wanted.items())
    ]
    assert len(matches) == 1, (site, metric, variant)
    assert matches[0].value is not None
    return matches[0].value


def next_token_loss(model: Any, ids: Tensor, **more: Any) -> tuple[Tensor, Any]:
    output = model(input_ids=ids, **more)
    logits = output.logits[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum"), output


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_hidden_gradients_are_those_of_autograd(name: str) -> None:
    model, _ = build(name)
    test = batches(2)
    run = anisoscope.tangent_test(model, fit=batches(1), test=test, tangent=FIXED, gradients=["hidden"], sinks=True)
    for layer in (0, 1):
        rows = []
        for batch in test:
            loss, output = next_token_loss(model, batch["input_ids"], output_hidden_states=True)
            rows.append(torch.autograd.grad(loss, output.hidden_states[layer + 1])[0].flatten(0, 1))
        exact = oracle.energy(torch.cat(rows).double().numpy(), np.eye(32)[:, :4])
        assert value(run, f"grad.resid.{layer}") == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "reader", "writer"),
    [
        ("llama", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.down_proj"),
        ("gpt2", "transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj"),
    ],
)
def test_weight_and_embedding_gradients_are_those_of_autograd(name: str, reader: str, writer: str) -> None:
    model, _ = build(name)
    test = batches(2)
    kinds = ["weight_in", "weight_out", "embedding"]
    run = anisoscope.tangent_test(model, fit=batches(1), test=test, tangent=FIXED, gradients=kinds, sinks=True)
    table = model.get_input_embeddings()
    tied = model.get_output_embeddings().weight is table.weight
    weights = [model.get_submodule(reader).weight, model.get_submodule(writer).weight, table.weight]
    loss = torch.stack([next_token_loss(model, batch["input_ids"])[0] for batch in test]).sum()
    grads = [g.double().numpy() for g in torch.autograd.grad(loss, weights)]
    if name == "gpt2":  # its linear maps keep their weights the other way round
        grads[:2] = [grads[0].T, grads[1].T]
    q = np.eye(32)[:, :4]
    assert value(run, f"grad.weight.{reader}") == pytest.approx(oracle.energy(grads[0], q), rel=1e-3)
    assert value(run, f"grad.weight.{writer}") == pytest.approx(oracle.energy(grads[1].T, q), rel=1e-3)
    path = next(path for path, module in model.named_modules() if module is table)
    if not tied:
        assert value(run, f"grad.weight.{path}") == pytest.approx(oracle.energy(grads[2], q), rel=1e-3)


def test_every_gradient_is_tested_by_every_null_that_applies() -> None:
    model, _ = build("llama")
    request = Tangent(proxies=["pca", "semi_nmf"], ranks=[2, 4], nulls="all")
    bases = anisoscope.fit_frames(model, batches(1), tangent=request)
    others = {"step_0": bases, "other_run": bases}
    run = anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=request, others=others)
    records = list(run.records())
    spoken = {
        (r.variant["gradient"], r.variant["null"]) for r in records if "gradient" in r.variant and "null" in r.variant
    }
    by_gradient = {kind: {null for gradient, null in spoken if gradient == kind} for kind, _ in spoken}
    everywhere = {"normal_control", "equal_energy"}
    orienting = {"orientation", "coordinates", "variance_matched", "matched_covariance", "next_band", "transfer_slope"}
    elsewhere = {"other_layer", "step_0", "other_run", "shuffled_labels", "local_test"}
    assert by_gradient["hidden"] == everywhere | orienting | elsewhere
    assert by_gradient["weight_out"] == everywhere | orienting
    assert by_gradient["embedding"] == everywhere | orienting
    assert by_gradient["weight_in"] == everywhere | {"error_shuffle"}
    metrics = {r.metric for r in records}
    assert metrics <= set(run.info["metrics"])
    assert {"concept_rank", "frequency_distance", "anisotropy_share", "gradient_ceiling"} <= metrics
    strata = {r.variant["stratum"] for r in records if "stratum" in r.variant}
    assert strata == {f"{by}.{name}" for by in ("input", "target") for name in ("rare", "middle", "frequent")}
    assert {r.index for r in records if r.metric == "gradient_energy"} == {2, 4}
    same = [r for r in records if r.metric == "gradient_excess" and r.variant["null"] == "step_0"]
    assert all(abs(r.value or 0.0) < 1e-6 for r in same if r.variant["proxy"] == "pca")


@pytest.mark.parametrize(
    ("name", "sites", "weights"),
    [("bert", 3, 7), ("albert", 3, 1), ("t5", 5, 10), ("home_made", 3, 7), ("vit", 3, 6)],
)
def test_every_kind_of_model_is_tested_at_every_layer(name: str, sites: int, weights: int) -> None:
    """Readers and writers of each block and the table; shared blocks have neither, two stacks share a table."""
    model, example = build(name)

    def several(seed: int) -> list[dict[str, Tensor]]:
        draw = torch.Generator().manual_seed(seed)
        out: dict[str, Tensor] = {}
        for key, x in example.items():
            shape = (16, *x.shape[1:])
            if x.is_floating_point():
                out[key] = torch.randn(shape, generator=draw)
            else:
                out[key] = torch.randint(3, 99, shape, generator=draw) if "ids" in key else torch.ones(shape).long()
        return [out]

    def spread(output: Any, labels: Tensor) -> Tensor:
        state: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
        return state.square().sum()

    request = Tangent(proxies=["pca"], ranks=[2], nulls=["orientation", "error_shuffle"])
    run = anisoscope.tangent_test(model, fit=several(1), test=several(2), loss=spread, tangent=request)
    seen = {r.site for r in run.records() if r.metric == "gradient_energy"}
    assert len([site for site in seen if "resid" in site]) == sites
    assert len([site for site in seen if "weight" in site]) == weights


def test_frozen_bases_are_tested_instead_of_refreshed_ones() -> None:
    model, _ = build("llama")
    early, _ = build("llama")
    with torch.no_grad():
        for parameter in early.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    bases = anisoscope.fit_frames(early, batches(1), tangent=QUICK)
    tested: dict[str, Any] = {"fit": batches(1), "test": batches(2), "tangent": QUICK, "gradients": ["hidden"]}
    frozen = anisoscope.tangent_test(model, frozen=bases, **tested)
    fresh = anisoscope.tangent_test(model, **tested)
    assert value(frozen, "grad.resid.1", basis="frozen") != value(fresh, "grad.resid.1", basis="refreshed")


def test_the_share_of_movement_is_that_of_the_hidden_states() -> None:
    model, _ = build("llama")
    earlier, _ = build("llama")
    with torch.no_grad():
        earlier.model.layers[0].mlp.down_proj.weight.mul_(0.9)
    test = batches(2)
    run = anisoscope.tangent_test(
        model, fit=batches(1), test=test, earlier=earlier, tangent=FIXED, gradients=["hidden"], sinks=True
    )
    with torch.no_grad():
        now, then = (
            torch.cat([m(**batch, output_hidden_states=True).hidden_states[1].flatten(0, 1) for batch in test])
            for m in (model, earlier)
        )
    exact = oracle.energy((now - then).double().numpy(), np.eye(32)[:, :4])
    assert value(run, "resid.0", "displacement_energy") == pytest.approx(exact, rel=1e-4)
    assert 0 <= value(run, "resid.0", "gradient_p", null="orientation") <= 1


def test_shuffled_labels_change_the_last_layers_gradients() -> None:
    model, _ = build("llama")
    request = Tangent(proxies=["pca"], ranks=[4], nulls=["shuffled_labels"])
    run = anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=request, gradients=["hidden"])
    assert value(run, "grad.resid.2", "gradient_excess", null="shuffled_labels") != 0


def test_a_user_loss_gets_the_output_and_the_labels() -> None:
    model = HomeMade().eval()
    seen: list[tuple[Any, ...]] = []

    def squared(output: Tensor, labels: Tensor) -> Tensor:
        seen.append((output.shape, labels.shape))
        return output.gather(2, labels.clamp(min=0)[:, :, None]).square().sum()

    labelled = [{**batch, "labels": batch["input_ids"].flip(1)} for batch in batches(2)]
    run = anisoscope.tangent_test(
        model, fit=batches(1), test=labelled, loss=squared, tangent=QUICK, gradients=["hidden"]
    )
    assert seen[0] == ((6, 16, 99), (6, 16))
    assert run.info["tangent"]["loss"] == "squared"


def test_an_encoder_is_tested_on_masked_tokens() -> None:
    import transformers

    hf: Any = transformers
    torch.manual_seed(0)
    config = hf.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=99
    )
    model = hf.BertForMaskedLM(config).eval()
    run = anisoscope.tangent_test(model, fit=batches(1), test=batches(2), mask=1, tangent=QUICK, gradients=["hidden"])
    assert run.info["tangent"]["loss"] == "masked_token"
    assert 0 < value(run, "grad.resid.0") < 1
    with pytest.raises(InputError, match="mask token"):
        anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=QUICK)


def test_the_model_is_unchanged_afterwards() -> None:
    model, _ = build("llama")
    model.train()
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(False)
    before = {name: (p.clone(), p.requires_grad) for name, p in model.named_parameters()}
    anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=QUICK)
    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.requires_grad == before[name][1]
        assert parameter.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_with_all_weights_frozen_has_gradients_too() -> None:
    model, _ = build("llama")
    free = anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=QUICK, gradients=["hidden"])
    model.requires_grad_(False)
    shut = anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=QUICK, gradients=["hidden"])
    assert value(shut, "grad.resid.0") == pytest.approx(value(free, "grad.resid.0"))


def test_first_tokens_count_only_with_sinks() -> None:
    model, _ = build("llama")
    fit, test = batches(1), batches(2)
    tested: dict[str, Any] = {"fit": fit, "test": test, "tangent": FIXED, "gradients": ["hidden"]}
    run, whole = (anisoscope.tangent_test(model, sinks=sinks, **tested) for sinks in (False, True))
    some, every = (next(r for r in each.records() if r.metric == "gradient_energy") for each in (run, whole))
    assert (some.tokens, every.tokens) == ("no-sink", "all")
    assert (some.n, every.n) == (3 * 6 * 15, 3 * 6 * 16)


def test_errors_tell_the_user_what_to_do() -> None:
    model, _ = build("llama")
    with pytest.raises(InputError, match=r"(?i)did you mean '?hidden"):
        anisoscope.tangent_test(model, fit=batches(1), test=batches(2), gradients=["hiden"])
    with pytest.raises(InputError, match=r"(?i)did you mean '?coordinates"):
        anisoscope.tangent_test(model, fit=batches(1), test=batches(2), tangent=Tangent(nulls=["coordinate"]))
    with pytest.raises(InputError, match="objective of HomeMade is unknown"):
        anisoscope.tangent_test(HomeMade(), fit=batches(1), test=batches(2))
    with pytest.raises(InputError, match="embed and resid sites"):
        anisoscope.tangent_test(model, fit=batches(1), test=batches(2), sites=["mlp"])
    with pytest.raises(InputError, match="no batches"):
        anisoscope.tangent_test(model, fit=[], test=batches(2))
    with pytest.raises(CaptureError, match="depends on the model"):
        anisoscope.tangent_test(
            model, fit=batches(1), test=batches(2), loss=lambda output, labels: torch.zeros(()), tangent=QUICK
        )


def test_the_error_names_a_site_that_the_loss_does_not_depend_on() -> None:
    model = HomeMade().eval()

    def shallow(output: Tensor, labels: Tensor) -> Tensor:
        return model.embed.weight.sum() + 0 * output.detach().sum()

    with pytest.raises(CaptureError, match=r"resid\.0.*the loss does not depend on it"):
        anisoscope.tangent_test(model, fit=batches(1), test=batches(2), loss=shallow, tangent=QUICK)
