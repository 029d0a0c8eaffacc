"""Tokens that the model itself generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anisoscope
from anisoscope.errors import InputError
from tests import model_folders

hf: Any = transformers  # its configurations take far more than their signatures say


Values = dict[tuple[Any, ...], float]


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


def test_only_tokens_added_by_the_model_count_as_generated(folder: Path, text: Path) -> None:
    names = ["mean_cosine"]
    run = anisoscope.measure(folder, text=text, tokens=256, window=64, generate=8, metrics=names, sites=["resid"])
    records = [r for r in run.records() if r.tokens == "generated"]
    assert {r.site for r in records} == {r.site for r in run.records() if r.tokens == "all"}
    windows = 256 // 64
    assert {r.n for r in records} == {windows * 8}
    assert all(r.error_kind is None or r.error_kind.endswith("continuations") for r in records)


def test_generation_is_seeded_and_does_not_change_the_random_state(folder: Path, text: Path) -> None:
    def once() -> Values:
        options: dict[str, Any] = {"tokens": 128, "window": 64, "generate": 4, "metrics": ["mean_cosine"]}
        return values(anisoscope.measure(folder, text=text, **options), tokens="generated")

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert once() == once()
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path, text: Path) -> None:
    bert = model_folders.save(
        tmp_path / "bert", hf.BertForMaskedLM(model_folders.bert_config()), model_folders.word_pieces()
    )
    with pytest.raises(InputError, match="cannot generate"):
        anisoscope.measure(bert, text=text, tokens=64, generate=4, metrics=["mean_cosine"])
