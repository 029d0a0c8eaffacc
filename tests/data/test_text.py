"""Windows of text: compared with the oracle that cuts one token at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.data.text import text_batches
from anisoscope.data.text_sources import TextDocuments, text_documents, text_pieces
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from tests import model_folders as made
from tests.oracles import windows as oracle

TOKENIZERS = {"bytes": made.byte_pairs, "words": made.word_pieces, "sentences": made.sentence_pieces}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def seen(batches: Iterable[Batch]) -> list[list[oracle.Token]]:
    """What batches say of their counted tokens, row by row."""
    rows = []
    for batch in batches:
        for b in range(len(batch.counts)):
            tokens = []
            for t in range(batch.counts.shape[1]):
                if batch.counts[b, t]:
                    document, position, offset, token = (
                        int(column[b, t]) for column in (batch.document, batch.position, batch.offset, batch.token)
                    )
                    tokens.append(oracle.Token(document, position, offset, token, bool(batch.special[b, t])))
            rows.append(tokens)
    return rows


def bare(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text("ab cd.\n", max_size=40), min_size=1, max_size=6),
    window=st.integers(4, 12),
    size=st.integers(1, 4),
)
def test_windows_equal_those_cut_one_token_at_a_time(texts: list[str], window: int, size: int) -> None:
    tokenizer = CLS_TOKENIZER
    documents = {n: bare(tokenizer, text) for n, text in enumerate(texts) if text.strip()}
    expected = oracle.windows(documents, prefix=[2], suffix=[3], window=window)
    if not expected:
        return
    batches = list(text_batches(tokenizer, texts, window=window, batch=size))
    assert seen(batches) == [
        [oracle.Token(t.document, t.position, t.offset, t.token, t.special or t.token == 1) for t in row]
        for row in expected
    ]
    for batch in batches:
        assert batch.inputs["input_ids"].shape == batch.counts.shape
        assert torch.equal(batch.inputs["attention_mask"].bool(), batch.counts)
        assert torch.equal(batch.token, batch.inputs["input_ids"].masked_fill(~batch.counts, -1))
        assert batch.counts.all(dim=0).any()  # no column of padding alone
        assert (batch.counts[:, 1:] <= batch.counts[:, :-1]).all()  # padding is on the right


CLS_TOKENIZER = made.word_pieces()


def test_the_tokens_of_a_document_have_different_positions() -> None:
    tokens = [t for row in seen(text_batches(CLS_TOKENIZER, [made.WORDS, made.WORDS], window=16)) for t in row]
    assert len({(t.document, t.position) for t in tokens}) == len(tokens)


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 18, 19, 20, 64, 100])
def test_the_number_of_tokens_is_exact(tokens: int) -> None:
    batches = list(text_batches(CLS_TOKENIZER, [made.WORDS] * 3, window=18, batch=2, tokens=tokens))
    assert sum(int(batch.counts.sum()) for batch in batches) == tokens
    for row in seen(batches):
        assert row[0].token == 2
        if len(row) > 2:
            assert row[-1].token == 3  # a shortened window keeps its [SEP]


def test_no_more_text_is_read_than_the_tokens_need() -> None:
    def endless() -> Iterable[str]:
        while True:
            yield made.WORDS

    assert sum(int(b.counts.sum()) for b in text_batches(CLS_TOKENIZER, endless(), window=32, tokens=500)) == 500


def test_cutting_a_text_into_pieces_does_not_change_its_tokens(tokenizer: Any) -> None:
    text = " ".join([made.WORDS] * 3)
    for size in (20, 33, 64, 200):
        pieces = list(text_pieces([text], size))
        assert "".join(pieces) == text
        assert len(pieces) > 3
        documents = [text_batches(tokenizer, _as_one_text(pieces), window=32, special=False)]
        ids = [t.token for batches in documents for row in seen(batches) for t in row]
        assert ids == bare(tokenizer, text)


def _as_one_text(pieces: list[str]) -> Any:
    return TextDocuments(lambda: iter(pieces), unit="windows")


def test_every_window_of_a_file_without_marks_is_a_document(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(made.WORDS)
    batches = list(text_batches(made.byte_pairs(), text_documents(file), window=16, batch=3))
    assert {batch.unit for batch in batches} == {"windows"}
    rows = seen(batches)
    assert [row[0].document for row in rows] == list(range(len(rows)))
    assert all([t.position for t in row] == list(range(len(row))) for row in rows)
    assert [t.token for row in rows for t in row] == bare(made.byte_pairs(), made.WORDS)


def test_positions_continue_over_the_windows_of_a_document() -> None:
    rows = seen(text_batches(made.byte_pairs(), [made.WORDS, "short"], window=16))
    first = [t for row in rows for t in row if t.document == 0]
    assert [t.position for t in first] == list(range(len(first)))
    assert max(t.offset for t in first) == 15


def test_special_tokens_inside_the_text_are_marked() -> None:
    (row,) = seen(text_batches(made.byte_pairs(), ["one<|end|>two"]))
    assert [t.token for t in row if t.special] == [0]


def test_special_false_adds_no_special_tokens() -> None:
    (row,) = seen(text_batches(CLS_TOKENIZER, ["the fox"], special=False))
    assert [t.token for t in row] == bare(CLS_TOKENIZER, "the fox")
    assert not any(t.special for t in row)


def test_without_padding_only_windows_of_equal_length_share_a_batch() -> None:
    batches = list(text_batches(made.byte_pairs(), ["aa", "bb", "cc", "d", "ee"], batch=2, padding=False))
    assert [tuple(batch.counts.shape) for batch in batches] == [(2, 2), (1, 2), (1, 1), (1, 2)]
    assert all(batch.counts.all() and set(batch.inputs) == {"input_ids"} for batch in batches)


def test_the_decoder_gets_the_window_shifted_by_one() -> None:
    (batch,) = text_batches(made.sentence_pieces(), ["the fox", "a"], decoder_start=0)
    assert batch.decoder is not None
    for b in range(2):
        length = int(batch.counts[b].sum())
        ids = batch.inputs["input_ids"][b, :length].tolist()
        assert batch.decoder.token[b].tolist() == [0, *ids[:-1]] + [-1] * (batch.counts.shape[1] - length)
        assert batch.inputs["decoder_input_ids"][b, :length].tolist() == [0, *ids[:-1]]
        assert (batch.inputs["decoder_input_ids"][b, length:] == 0).all()  # <pad>
    assert torch.equal(batch.decoder.counts, batch.counts)
    assert batch.decoder.special[:, 0].all()
    assert torch.equal(batch.inputs["decoder_attention_mask"].bool(), batch.decoder.counts)


def test_bytes_can_replace_a_tokenizer() -> None:
    (row,) = seen(text_batches("bytes", ["né"]))
    assert [t.token for t in row] == list("né".encode())


@pytest.mark.parametrize("texts", [[], [""], ["  \n", "\t"]])
def test_an_empty_text_is_an_error(texts: list[str]) -> None:
    with pytest.raises(InputError, match="empty"):
        list(text_batches(CLS_TOKENIZER, texts))


def test_impossible_options_are_refused() -> None:
    with pytest.raises(InputError, match="window is 0"):
        text_batches(CLS_TOKENIZER, ["a"], window=0)
    with pytest.raises(InputError, match="cannot hold text and 2 special tokens"):
        text_batches(CLS_TOKENIZER, ["a"], window=2)
    with pytest.raises(InputError, match="no tokenizer"):
        text_batches(None, ["a"])
    with pytest.raises(InputError, match="mark is empty"):
        list(text_documents("-", mark=""))


def test_an_id_beyond_the_embedding_is_refused() -> None:
    with pytest.raises(InputError, match=r"gives id \d+ \('.*'\) but the model's embedding has 50 rows"):
        list(text_batches(made.byte_pairs(), ["the fox"], vocabulary=50))
