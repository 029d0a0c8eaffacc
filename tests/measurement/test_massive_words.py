"""The massive tokens of a run in words: with count and context, with and without tokenizer, of images too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.data.token_table import Batch, make_batch, window_table
from anisoscope.measurement import massive_words
from anisoscope.measurement.massive_words import SeenTokens, removed_tokens
from anisoscope.models.open import open_model
from tests import model_folders, tiny_models

OPTIONS: dict[str, Any] = {"metrics": ["isoscore"], "errors": False, "window": 24}
TEXTS = [f"{number} {model_folders.WORDS}" for number in range(5)]


def stretched(folder: Path, text: str) -> tuple[Any, int]:
    """A model whose embedding of the token of this text is 100 times as long, and the id of the token."""
    opened = open_model(folder)
    tokenizer: Any = opened.processor
    [token] = tokenizer.encode(text, add_special_tokens=False)
    with torch.no_grad():
        opened.model.get_input_embeddings().weight[token] *= 100  # type: ignore[operator]
    return opened, token


def test_words_have_the_count_of_the_text_and_stand_in_their_context(folder: Path) -> None:
    opened, token = stretched(folder, " the")
    run = anisoscope.measure(opened, TEXTS, **OPTIONS)
    ids = Counter(id_ for text in TEXTS for id_ in opened.processor.encode(text))
    word = next(word for word in run.info["removed"]["words"] if word["token"] == token)
    assert word["count"] == ids[token] > 1
    assert word["text"] == word["shown"] == " the"
    assert word["left"] + word["shown"] + word["right"] in "".join(TEXTS)
    assert len(word["right"]) > 5
    assert word["site"] == "embed"
    assert word["norm over median"] > 5


def test_a_tokenizer_that_adds_spaces_keeps_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = model_folders.bert_config()
    model = model_folders.hf.BertModel(config)
    folder = model_folders.save(tmp_path / "bert", model, model_folders.word_pieces())
    opened, token = stretched(folder, "us")
    seen = SeenTokens([{"input_ids": torch.tensor([opened.processor.encode("before us, we had nothing")])}])
    batch = next(iter(seen))
    position = batch["input_ids"][0].tolist().index(token)
    entry = {"document": 0, "position": position, "token": token, "site": "embed"}
    [word] = removed_tokens([{**entry, "norm over median": 9.0}], opened, seen)["words"]
    assert word["text"] == "us"
    assert (word["left"] + word["shown"]).endswith("before us")


def test_without_a_tokenizer_words_are_ids_without_text() -> None:
    torch.manual_seed(0)
    model, _ = tiny_models.build("gpt2")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] *= 100
    ids = torch.randint(8, 90, (6, 20))
    ids[2, 11] = ids[4, 3] = 7
    run = anisoscope.measure(model, [{"input_ids": ids}], metrics=["isoscore"], errors=False)
    word = next(word for word in run.info["removed"]["words"] if word["token"] == 7)
    assert word["count"] == 2
    assert "text" not in word
    assert "left" not in word


def test_massive_patches_of_images_are_named_by_their_position() -> None:
    torch.manual_seed(0)
    model, _ = tiny_models.build("vit")
    with torch.no_grad():
        position = next(p for name, p in model.named_parameters() if "position_embeddings" in name)
        position[:, 3] += 40
    batch = {"pixel_values": torch.randn(5, 3, 16, 16)}
    run = anisoscope.measure(model, [batch], metrics=["isoscore"], errors=False)
    words = [{key: word[key] for key in ("position", "count")} for word in run.info["removed"]["words"]]
    assert words == [{"position": 3, "count": 5}]


def test_a_pass_that_is_resumed_at_its_end_reads_the_text_again(folder: Path) -> None:
    opened, token = stretched(folder, " the")
    batch = {"input_ids": torch.tensor([opened.processor.encode(TEXTS[0])])}
    entry = {"document": 0, "position": batch["input_ids"][0].tolist().index(token), "token": token, "site": "embed"}
    seen = SeenTokens(iter([batch, batch]))
    assert seen.around([entry]) == {}
    seen.catch_up(1)
    assert seen.around([entry])[0][1]


def test_of_two_sides_the_site_decides_and_beyond_the_limit_there_is_no_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def table(ids: list[int]) -> Any:
        tensor = torch.tensor([ids])
        zero = torch.zeros(1, dtype=torch.int64)
        return window_table(tensor, torch.tensor([len(ids)]), zero, zero, torch.zeros_like(tensor, dtype=torch.bool))

    def batch() -> Batch:
        return make_batch(table([1, 5, 2]), {}, decoder=table([3, 5, 4]))

    entry = {"document": 0, "position": 1, "token": 5}
    seen = SeenTokens([batch()])
    assert len(list(seen)) == 1
    found = seen.around([{**entry, "site": "enc.resid.0"}, {**entry, "site": "dec.resid.0"}])
    assert found == {0: ([1], [2]), 1: ([3], [4])}
    monkeypatch.setattr(massive_words, "_KEPT", 0)
    assert list(SeenTokens([batch()]))
    assert SeenTokens([batch()]).around([{**entry, "site": "enc.resid.0"}]) == {}
