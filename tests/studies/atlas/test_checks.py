"""Known-good checks tell a model that behaves as trained from one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from anisoscope.studies.atlas.checks import (
    formula_error,
    masked_accuracy,
    nats_per_token,
    run_check,
    sentence_margin,
    table_accuracy,
)
from anisoscope.studies.atlas.formula_images import draw_formulas
from anisoscope.studies.atlas.own_folders import LETTERS, save_module
from anisoscope.studies.atlas.own_modules import make_module
from tests import model_folders as made


def test_nats_per_token_is_the_cross_entropy_by_hand(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"), head=True)
    assert opened.processor is not None
    ids = torch.tensor([opened.processor("the cat sat")["input_ids"]])
    with torch.no_grad():
        chances = opened.model(input_ids=ids).logits[0].softmax(-1)
        nats = nats_per_token(opened, None, texts=["the cat sat"])
    by_hand = -sum(float(chances[i, token].log()) for i, token in enumerate(ids[0, 1:].tolist())) / (ids.shape[1] - 1)
    assert nats == pytest.approx(by_hand, rel=1e-5)


def test_a_check_reports_its_limit_and_whether_it_passed(tmp_path: Path) -> None:
    folder = made.gpt2(tmp_path / "gpt2")
    good = run_check(folder, {"kind": "nats", "limit": 9, "texts": ["the cat"]})
    bad = run_check(folder, {"kind": "nats", "limit": 0.1, "texts": ["the cat"]})
    assert (good.passed, bad.passed) == (True, False)
    assert good.text.endswith("nats per token (≤ 9)")
    with pytest.raises(InputError, match="nats"):
        run_check(folder, {"kind": "nat", "limit": 1})


def test_the_margin_is_the_worst_pair_of_each_kind(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"))
    with torch.no_grad():
        same = sentence_margin(opened, None, groups=[["the cat", "the cat"], ["a", "a"]])
        other = sentence_margin(opened, None, groups=[["the cat", "a"], ["the cat", "a"]])
    assert same > 0 > other


def test_masked_tokens_are_chosen_in_turn(tmp_path: Path) -> None:
    tokenizer = made.word_pieces()
    tokenizer.mask_token = tokenizer.unk_token  # the model ignores its input
    ids = tokenizer("the cat sat on the mat")["input_ids"]
    model: Any = transformers.BertForMaskedLM(made.bert_config())
    model.cls.predictions.bias.data[ids[1]] = 1e4  # always guesses the first word
    opened = open_model(made.save(tmp_path / "bert", model, tokenizer), head=True)
    inner = ids[1:-1]
    with torch.no_grad():
        for every in (1, 2):
            share = masked_accuracy(opened, None, texts=["the cat sat on the mat"], every=every)
            assert share == sum(i == ids[1] for i in inner[::every]) / len(inner[::every])
    assert 0 < share < 1


def test_tables_count_hidden_labels_only(tmp_path: Path) -> None:
    sizes = {"features": 2, "width": 8, "layers": 1, "heads": 2, "hidden": 8, "classes": 3}
    model = make_module("tables", sizes)
    torch.nn.init.zeros_(model.head[2].weight)  # type: ignore[index, union-attr]
    model.head[2].bias.data = torch.tensor([0.0, 1.0, 0.0])  # type: ignore[index, union-attr]
    (tmp_path / "model").mkdir()
    save_module(tmp_path / "model", "tables", sizes, model)  # always predicts class 1
    labels, truth = torch.tensor([[0, 0, -1, -1]]), torch.tensor([[0, 0, 1, 2]])
    save_file({"table": torch.zeros(1, 4, 2), "labels": labels, "truth": truth}, tmp_path / "t.safetensors")
    assert table_accuracy(open_model(tmp_path / "model"), str(tmp_path / "t.safetensors")) == 0.5


def test_letters_of_formulas_count_without_commands(tmp_path: Path) -> None:
    sizes = {"height": 16, "breadth": 32, "patch": 8, "width": 8, "layers": 1, "heads": 2, "vocabulary": 4}
    sizes["positions"] = 12
    model: Any = make_module("formulas", sizes)
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 0.0, 0.0, 1.0])  # always writes "a"
    (tmp_path / "model").mkdir()
    save_module(tmp_path / "model", "formulas", sizes, model)
    (tmp_path / "model" / LETTERS).write_text(json.dumps(["<pad>", "<bos>", "<eos>", "a"]))
    (tmp_path / "images").mkdir()
    draw_formulas([], tmp_path / "images", count=1, height=16, breadth=32)
    (tmp_path / "images" / "000.txt").write_text(r"\begin{equation*}\frac{a}{b} = 1a\end{equation*}")
    opened = open_model(tmp_path / "model")
    with torch.no_grad():
        assert formula_error(opened, str(tmp_path / "images"), longest=5) == 0.5  # b and 1 of a, b, 1, a
