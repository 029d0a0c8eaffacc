"""Rows of all layers: the states of a forward pass, pooled by document or taken at words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import CaptureError, InputError
from anisoscope.measurement.layer_rows import RowChoice, layer_rows
from anisoscope.measurement.request import Request
from anisoscope.models.open import Opened, open_model
from tests import model_folders

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Call me Ishmael.", "It was the best of times", "water"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(model_folders.gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    torch.manual_seed(0)
    model = model_folders.hf.BertModel(model_folders.bert_config())
    return open_model(model_folders.save(tmp_path_factory.mktemp("bert"), model, model_folders.word_pieces()))


def states(opened: Opened, text: str) -> list[torch.Tensor]:
    """The states (T, d) of one text alone: embed, then every layer."""
    inputs: Any = opened.processor(text, return_tensors="pt")  # type: ignore[misc]
    with torch.no_grad():
        return [x[0] for x in opened.model(**inputs, output_hidden_states=True).hidden_states]


def request(**options: Any) -> Request:
    return Request.of(sites=("embed", "resid"), batch=2, **options)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_rows_are_those_of_each_document_alone(kind: str, request: pytest.FixtureRequest) -> None:
    opened: Opened = request.getfixturevalue(kind)
    options = Request.of(sites=("embed", "resid.0"), batch=2)
    expected = [states(opened, text)[:2] for text in TEXTS]
    special = 1 if kind == "encoder" else 0  # at the end
    seen: list[int] = []
    rows = layer_rows(opened, TEXTS, RowChoice("mean", sinks=True), options, seen.append)
    assert [str(site) for site in rows.sites] == ["embed", "resid.0"]
    assert seen == [2, 2]
    choices = {
        RowChoice("mean", sinks=True): lambda x: x.mean(0),
        RowChoice("cls"): lambda x: x[0],
        RowChoice("last"): lambda x: x[len(x) - 1 - special],
    }
    for choice, pooled in choices.items():
        rows = layer_rows(opened, TEXTS, choice, options)
        for site in range(2):
            wanted = torch.stack([pooled(each[site]) for each in expected])
            # padding and batches change the order of float32 sums of 16 to 32 terms
            assert torch.allclose(rows.rows[site], wanted, atol=1e-5), choice


def test_the_mean_leaves_out_first_tokens_and_documents_of_one_token(decoder: Opened) -> None:
    texts = [*TEXTS[:3], "a"]
    rows = layer_rows(decoder, texts, RowChoice("mean"), request())
    assert rows.sink.tolist() == [False, False, False, True]
    for number in range(3):
        assert torch.allclose(rows.rows[0][number], states(decoder, texts[number])[0][1:].mean(0), atol=1e-5)


def test_a_massive_token_leaves_the_mean_and_stays_out_at_later_layers(decoder: Opened) -> None:
    texts = ["The quick brown fox", "over the lazy dog"]
    ids = decoder.processor(texts[0])["input_ids"]  # type: ignore[misc]
    embedding: Any = decoder.model.get_input_embeddings()  # type: ignore[operator]
    kept = [t for t in range(1, len(ids)) if ids[t] != ids[2]]
    before = embedding.weight[ids[2]].clone()
    try:
        with torch.no_grad():
            embedding.weight[ids[2]] *= 1000
        rows = layer_rows(decoder, texts, RowChoice("mean"), request())
        alone = states(decoder, texts[0])
        last = layer_rows(decoder, texts, RowChoice("words", words=[[2, kept[0]], []]), request())
    finally:
        with torch.no_grad():
            embedding.weight[ids[2]] = before
    assert torch.allclose(rows.rows[0][0], alone[0][kept].mean(0), atol=1e-4)
    assert torch.allclose(rows.rows[1][0], alone[1][kept].mean(0), atol=1e-4)
    assert last.sink.tolist() == [True, False]


def test_words_take_the_tokens_that_they_are_given(decoder: Opened) -> None:
    words = [[1, 3], [], [2], [0]]
    rows = layer_rows(decoder, TEXTS, RowChoice("words", words=words), request())
    expected = [states(decoder, text)[1][token] for text, tokens in zip(TEXTS, words, strict=True) for token in tokens]
    assert torch.allclose(rows.rows[1], torch.stack(expected), atol=1e-5)
    assert rows.sink.tolist() == [False, False, False, True]  # position 0


def test_an_encoder_decoder_shows_its_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = model_folders.hf.T5Model(model_folders.t5_config())
    opened = open_model(model_folders.save(tmp_path, model, model_folders.sentence_pieces()))
    rows = layer_rows(opened, TEXTS, RowChoice("mean"), request())
    assert [str(site) for site in rows.sites] == ["enc.embed", "enc.resid.0", "enc.resid.1"]
    assert rows.rows[0].shape == (4, 16)


def test_what_cannot_be_aligned_or_is_not_a_number_is_refused(decoder: Opened, encoder: Opened) -> None:
    with pytest.raises(InputError, match="Document 2 cannot be aligned: it has no tokens"):
        layer_rows(encoder, ["the dog", "\u200b\u200d", "water"], RowChoice("mean"), request())
    with pytest.raises(InputError, match="Document 3 cannot be aligned"):
        layer_rows(encoder, ["the dog", "water", "\u200b\u200d"], RowChoice("mean"), request())
    with pytest.raises(CaptureError, match="none of the sites"):
        layer_rows(decoder, TEXTS, RowChoice("mean"), Request.of(sites=()))
    weight: Any = decoder.model.get_parameter("h.1.mlp.c_fc.bias")
    before = weight.clone()
    try:
        with torch.no_grad():
            weight[:] = torch.nan
        with pytest.raises(InputError, match=r"From resid\.1 of .* on, 4 rows hold NaN"):
            layer_rows(decoder, TEXTS, RowChoice("mean"), request())
    finally:
        with torch.no_grad():
            weight[:] = before
