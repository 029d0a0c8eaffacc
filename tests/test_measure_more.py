"""Weights and the final norm, generated tokens, batches as papers take them, resuming, and runs that go wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anisoscope
from anisoscope import metrics
from anisoscope.capture import find_layout
from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.final_norm import gain_and_bias, norm_variants
from anisoscope.models.open import Opened, open_model
from tests import model_folders
from tests.tiny_models import build

hf: Any = transformers  # its configurations take far more than their signatures say
Values = dict[tuple[Any, ...], float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folders.gpt2(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("text") / "text.txt"
    place.write_text("\n\n".join(model_folders.WORDS for _ in range(12)))
    return place


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


def test_weights_need_no_data_and_are_those_of_the_matrix(folder: Path) -> None:
    run = anisoscope.measure(folder, weights=True, metrics=["mean_cosine", "partition_isotropy"])
    matrix = open_model(folder).model.get_parameter("wte.weight").detach()
    found = values(run, metric="mean_cosine")
    raw = found["weight.input", "mean_cosine", "all", None, ("matrix", "raw")]
    centred = found["weight.input", "mean_cosine", "all", None, ("matrix", "centred")]
    assert raw == pytest.approx(metrics.mean_cosine(matrix), abs=1e-6)
    assert centred == pytest.approx(metrics.mean_cosine(matrix - matrix.mean(0)), abs=1e-6)
    gain = {r.variant["of"]: r.value for r in run.records() if r.metric == "norm_gain"}
    assert gain["mean"] == pytest.approx(1.0)
    assert {r.site for r in run.records()} == {"weight.input", "weight.final_norm"}  # GPT-2 ties its output


def test_rows_that_were_never_trained_are_left_out_apart() -> None:
    model, _ = build("gpt2")
    matrix = model.get_input_embeddings().weight
    with torch.no_grad():
        matrix[-7:] = 0.25  # padding of the vocabulary: all alike
    run = anisoscope.measure(model, weights=True, metrics=["mean_cosine"])
    kept = {r.variant["matrix"]: r.n for r in run.records() if r.metric == "mean_cosine"}
    assert kept["raw"] == len(matrix)
    assert kept["trained"] == len(matrix) - 7


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_final_norm_that_is_reset_is_a_plain_norm(name: str) -> None:
    model, inputs = build(name)
    layout = find_layout(model, inputs)
    norm = model.get_submodule(layout.stacks[-1].final)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.linspace(-0.3, 0.5, len(parameter))
    gain, bias = gain_and_bias(norm)
    assert gain is not None
    x = torch.randn(5, len(gain), generator=torch.Generator().manual_seed(0))
    found = {which: y.detach() for which, number, y in norm_variants(norm, x, 0, 1) if number == 0}
    assert torch.allclose(found["as trained"], norm(x).detach())
    plain = found["both reset" if bias is not None else "gain reset"]
    assert torch.allclose(plain * gain + (0 if bias is None else bias), found["as trained"], atol=1e-5)
    if bias is None:  # an RMS norm: unit root mean square, whatever the gain was
        assert torch.allclose(plain.square().mean(1), torch.ones(5), atol=1e-3)


def test_resetting_the_final_norm_is_measured_beside_the_permuted_one(folder: Path, text: Path) -> None:
    run = anisoscope.measure(folder, text=text, tokens=400, window=32, weights=True, metrics=["mean_cosine"])
    found = {r.variant["norm"]: r for r in run.records() if r.metric == "mean_cosine" and "norm" in r.variant}
    assert set(found) == {"as trained", "gain reset", "bias reset", "both reset", "permuted"}
    direct = next(r for r in run.records() if r.site == "final" and r.metric == "mean_cosine" and not r.variant)
    assert found["as trained"].value == pytest.approx(direct.value, abs=1e-5)  # all rows are in the sample
    assert found["permuted"].error_kind == "deviation-20-permutations"


def test_only_tokens_that_the_model_added_count_as_generated(folder: Path, text: Path) -> None:
    names = ["mean_cosine"]
    run = anisoscope.measure(folder, text=text, tokens=256, window=64, generate=8, metrics=names, sites=["resid"])
    records = [r for r in run.records() if r.tokens == "generated"]
    assert {r.site for r in records} == {r.site for r in run.records() if r.tokens == "all"}
    windows = 256 // 64
    assert {r.n for r in records} == {windows * 8}
    assert all(r.error_kind is None or r.error_kind.endswith("continuations") for r in records)


def test_generation_is_seeded_and_leaves_the_random_state_alone(folder: Path, text: Path) -> None:
    def once() -> Values:
        options: dict[str, Any] = {"tokens": 128, "window": 64, "generate": 4, "metrics": ["mean_cosine"]}
        return values(anisoscope.measure(folder, text=text, **options), tokens="generated")

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert once() == once()
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_that_cannot_generate_says_so(tmp_path: Path, text: Path) -> None:
    bert = model_folders.save(
        tmp_path / "bert", hf.BertForMaskedLM(model_folders.bert_config()), model_folders.word_pieces()
    )
    with pytest.raises(InputError, match="cannot generate"):
        anisoscope.measure(bert, text=text, tokens=64, generate=4, metrics=["mean_cosine"])


def test_the_spread_over_batches_is_that_of_batches_measured_alone(folder: Path, text: Path) -> None:
    options: dict[str, Any] = {"metrics": ["mean_cosine"], "sites": ["resid.0"], "window": 32, "errors": False}
    run = anisoscope.measure(folder, text=text, tokens=256, batch_tokens=64, **options)
    found = {r.variant.get("of batches"): r for r in run.records() if r.tokens == "all"}
    opened = open_model(folder)
    each = [
        values(anisoscope.measure(opened, [batch], **options), tokens="all")["resid.0", "mean_cosine", "all", None]
        for batch in _pairs_of_windows(opened, text)
    ]
    mean = sum(each) / len(each)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in each) / (len(each) - 1))
    assert len(each) == 4
    assert found["mean"].value == pytest.approx(mean, abs=1e-6)
    assert found["mean"].error == pytest.approx(deviation / 2, abs=1e-6)
    assert found["std"].value == pytest.approx(deviation, abs=1e-6)
    with pytest.raises(InputError, match="measure at least 256"):
        anisoscope.measure(folder, text=text, tokens=200, batch_tokens=128, **options)


def _pairs_of_windows(opened: Opened, text: Path) -> list[Any]:
    return list(model_batches(opened, text, window=32, batch=2, tokens=256))[:4]


class Stop(Exception):
    """A process that ends in mid-pass, where nothing can be cleaned up."""


def _stopping(real: Any, after: int, with_what: BaseException) -> Any:
    def batches(*given: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(real(*given, **options)):
            if number == after:
                raise with_what
            yield batch

    return batches


@pytest.mark.parametrize("sites", [["resid"], ["resid", "pattern"]])
@pytest.mark.parametrize("how", [Stop(), KeyboardInterrupt()])
def test_a_pass_that_was_stopped_goes_on_to_the_same_numbers(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: list[str], how: BaseException
) -> None:
    names = ["mean_cosine", "spectral_anisotropy", "two_nn", *(["attention_entropy"] if "pattern" in sites else [])]
    request: dict[str, Any] = {"text": text, "tokens": 600, "window": 32, "batch": 2, "metrics": names, "sites": sites}
    request["batch_tokens"] = 128
    whole = anisoscope.measure(folder, **request, out=tmp_path / "whole")
    monkeypatch.setattr("anisoscope.measurement.resume._EVERY", -1.0)  # keep after every batch
    monkeypatch.setattr("anisoscope.measurement.resume._PRICE", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("anisoscope.measurement.measure_model.model_batches", _stopping(model_batches, 4, how))
        if isinstance(how, Stop):
            with pytest.raises(Stop):
                anisoscope.measure(folder, **request, out=tmp_path / "stopped")
        else:
            half = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
            assert half.info["interrupted"]
            assert values(half)  # what was seen is measured
    resumed = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
    assert values(resumed) == values(whole)
    assert len(list(resumed.records())) == len(list(whole.records()))
    assert not list((tmp_path / "stopped").glob("partial*"))


def test_a_whole_measurement_is_returned_and_another_request_refused(folder: Path, text: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"]}
    first = anisoscope.measure(folder, **request, out=tmp_path / "run")
    again = anisoscope.measure(folder, **request, out=tmp_path / "run")
    assert values(again) == values(first)
    with pytest.raises(StoreError, match="different: seed"):
        anisoscope.measure(folder, **request, seed=1, out=tmp_path / "run")


def test_nan_at_a_layer_is_said_with_the_layer(folder: Path, text: Path) -> None:
    opened = open_model(folder)
    with torch.no_grad():
        opened.model.get_parameter("h.1.mlp.c_proj.bias")[0] = math.nan
    run = anisoscope.measure(opened, text=text, tokens=64, window=32, metrics=["mean_cosine"])
    assert run.info["not_finite"]["site"] == "resid.1"
    assert values(run, site="resid.0")
    assert not values(run, site="resid.1")


def test_data_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("not an image")
    with pytest.raises(InputError, match="takes text and nothing else; got image"):
        anisoscope.measure(folder, images=tmp_path, metrics=["mean_cosine"])
