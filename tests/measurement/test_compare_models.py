"""Similarity of two models from start to end: widths, depths, tokenizers, kinds of rows, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope import InputError, Record, Run, StoreError
from anisoscope.measurement import compare_models
from anisoscope.measurement.compare_models import block_sizes, permuted_rows
from tests import model_folders
from tests.sweep_folders import documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two decoders of different width and depth, an encoder with another tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("models")
    model_folders.gpt2(folder / "a")
    model_folders.gpt2(folder / "wide", n_embd=24, n_layer=3)
    torch.manual_seed(1)
    encoder = model_folders.hf.BertModel(model_folders.bert_config())
    model_folders.save(folder / "bert", encoder, model_folders.word_pieces())
    documents(folder / "text.jsonl")
    return folder


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_models, "DRAWS", 19)


def compare(folder: Path, a: str, b: str, **options: Any) -> Run:
    return anisoscope.similarity(folder / a, folder / b, **{"text": folder / "text.jsonl", **options})


def values(run: Run, metric: str, **variant: str) -> dict[tuple[str, str], Record]:
    """The records of a metric by layer of a and layer of b."""
    wanted = [r for r in run.records() if r.metric == metric and variant.items() <= r.variant.items()]
    return {(r.site, r.variant["other"]): r for r in wanted}


@pytest.mark.parametrize("rows", ["mean", "last", "words"])
def test_a_model_is_the_same_as_itself(folder: Path, rows: str) -> None:
    run = compare(folder, "a", "a", rows=rows, limit=200)
    same = {pair: r for pair, r in values(run, "layer_cka").items() if pair[0] == pair[1]}
    assert list(same) == [(site, site) for site in ("embed", "resid.0", "resid.1", "final")]
    for pair, record in same.items():
        assert record.value == pytest.approx(1.0, abs=1e-9)
        assert values(run, "layer_overlap")[pair].value in (1.0, None)  # None: copies of a token have no neighbours
        assert values(run, "similarity_p", of="layer_cka")[pair].value == pytest.approx(0.05)
    assert values(run, "layer_overlap")["final", "final"].value == 1.0
    assert {r.tokens for r in run.records()} == {"no-sink"}


def test_widths_depths_and_tokenizers_may_differ(folder: Path) -> None:
    run = compare(folder, "wide", "bert")
    pairs = values(run, "layer_cka")
    assert {a for a, _ in pairs} == {"embed", "resid.0", "resid.1", "resid.2", "final"}
    assert {b for _, b in pairs} == {"embed", "resid.0", "resid.1"}
    assert all(r.value is not None and r.error and r.error_kind == "jackknife-32-documents" for r in pairs.values())
    info = run.info
    assert info["kind"] == "similarity"
    assert info["similarity"]["compared"] == 60
    assert info["similarity"]["distance"] == "Euclidean"
    assert info["similarity"]["cut"] > 10  # BERT has 48 positions
    assert set(run.metrics()) <= set(info["metrics"])


def test_directions_of_imbalance_and_pairs_are_mirrored_if_models_are_exchanged(folder: Path) -> None:
    one, other = compare(folder, "a", "bert"), compare(folder, "bert", "a")
    directions: list[tuple[str, dict[str, str], dict[str, str]]] = [
        ("layer_cka", {}, {}),
        ("layer_imbalance", {"direction": "a to b"}, {"direction": "b to a"}),
    ]
    for metric, first, second in directions:
        mirrored = values(other, metric, **second)
        for (a, b), record in values(one, metric, **first).items():
            assert record.value == pytest.approx(mirrored[b, a].value, abs=1e-9)


def test_words_are_spread_over_documents_and_permuted_one_per_document(folder: Path) -> None:
    run = compare(folder, "a", "bert", rows="words", limit=160)
    facts = run.info["similarity"]
    assert facts["documents"] == 20
    assert facts["permuted rows"] == 20
    assert facts["compared"] + facts["left out"] <= 160
    assert facts["left out"] > 0  # words at position 0 of the decoder
    assert {r.null for r in run.records()} == {None}
    everything = compare(folder, "a", "bert", rows="words", limit=160, sinks=True)
    assert everything.info["similarity"]["left out"] == 0
    assert {r.tokens for r in everything.records()} == {"all"}


def test_the_first_token_of_an_encoder_does_not_vary_before_its_first_layer(folder: Path) -> None:
    run = compare(folder, "bert", "bert", rows="cls")
    embed = values(run, "layer_cka")["embed", "embed"]
    assert embed.value is None
    assert embed.note == "embed of model a: the rows do not vary"
    assert values(run, "layer_cka")["resid.1", "resid.1"].value == pytest.approx(1.0)
    assert ("embed", "embed") not in values(run, "similarity_p", of="layer_cka")


def test_the_same_request_is_not_computed_again_and_another_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    first = list(compare(folder, "a", "wide", out=out).records())
    with monkeypatch.context() as patch:
        patch.setattr(compare_models, "layer_rows", None)  # cannot be called
        assert list(compare(folder, "a", "wide", out=out).records()) == first
    with pytest.raises(StoreError, match=r"rows \(mean before, last now\)"):
        compare(folder, "a", "wide", out=out, rows="last")
    with pytest.raises(StoreError, match="model b"):
        compare(folder, "a", "bert", out=out)
    run = compare(folder, "a", "bert", out=out, overwrite=True)
    assert run.info["other_model"]["source"] == str(folder / "bert")


def test_an_interrupted_comparison_starts_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare_models, "permutation_tests", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compare(folder, "a", "wide", out=out)
    assert not Run.open(out).info["complete"]
    run = compare(folder, "a", "wide", out=out)
    assert run.info["complete"]
    assert len(list(run.records())) == 4 * 5 * 8  # pairs × numbers and p-values


def test_progress_counts_documents_rows_and_permutations(folder: Path) -> None:
    done: dict[str, list[int]] = {}
    totals: dict[str, int] = {}

    def begin(what: str, total: int) -> None:
        totals[what] = total
        done[what] = [0]

    compare(folder, "a", "wide", progress=lambda more: done[list(done)[-1]].append(more), on_stage=begin)
    assert totals == {"model a": 60, "model b": 60, "layer pairs": 60, "permutations": 19}
    assert {what: sum(counts) for what, counts in done.items()} == totals


def test_modules_with_their_tokenizers_give_the_numbers_of_their_folders(folder: Path, tmp_path: Path) -> None:
    a, b = anisoscope.open_model(folder / "a"), anisoscope.open_model(folder / "bert")
    texts = [f"the quick brown fox number {i} jumps over the lazy dog {i * 7}" for i in range(12)]
    wanted = anisoscope.similarity(a, b, text=texts).records()
    a.model.train()  # a notebook's model may be in this mode, in which dropout would change the states
    found = anisoscope.similarity(
        a.model, b.model, text=texts, tokenizer=a.processor, tokenizer_b=b.processor, out=tmp_path / "run"
    )
    assert [r.value for r in found.records()] == [r.value for r in wanted]
    assert a.model.training
    with pytest.raises(StoreError):  # a module has no name by which a finished run could be recognised
        anisoscope.similarity(a.model, b, text=texts, tokenizer=a.processor, out=tmp_path / "run")


def test_mistakes_are_explained(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No kind of rows named 'word'. Did you mean 'words'"):
        compare(folder, "a", "a", rows="word")
    with pytest.raises(InputError, match="compared on a text"):
        compare(folder, "a", "a", text=None)
    with pytest.raises(InputError, match="at least 4 rows, not 3"):
        compare(folder, "a", "a", limit=3)
    module: Any = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="Linear comes without a tokenizer"):
        anisoscope.similarity(module, folder / "a", text=["one"])
    with pytest.raises(InputError, match="Only 0 of 5 rows can be compared"):
        compare(folder, "a", "a", text=["a", "b", "c", "d", "e"])
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(json.dumps({"text": f"{word} the \u200b dog"}) for word in "abcdef"))
    with pytest.raises(InputError, match=r"Document 1 cannot be aligned: no token of model b \(.*bert\)"):
        compare(folder, "a", "bert", text=short, rows="words")


def test_blocks_are_whole_documents_of_similar_size() -> None:
    assert block_sizes(torch.arange(3)) == []
    sizes = block_sizes(torch.repeat_interleave(torch.arange(100), 5))
    assert (len(sizes), sum(sizes)) == (32, 500)
    assert {size % 5 for size in sizes} == {0}
    assert max(sizes) - min(sizes) == 5


def test_permuted_rows_are_from_different_documents() -> None:
    document = torch.repeat_interleave(torch.arange(1100), 2)
    rows = permuted_rows(document, seed=0)
    assert len(rows) == 1024
    assert len(document[rows].unique()) == 1024
    assert rows.tolist() == sorted(rows.tolist())
    assert not torch.equal(rows, permuted_rows(document, seed=1))
