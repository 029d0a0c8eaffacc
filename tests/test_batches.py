"""Data becomes batches whose tables say of every token where it came from."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anisoscope.data.audio import audio_batches, resample
from anisoscope.data.batches import model_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text import text_batches
from anisoscope.data.text_sources import TextDocuments, text_documents, text_pieces
from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.errors import InputError
from anisoscope.models.open import open_model
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


def test_the_tokens_of_a_document_have_different_names() -> None:
    tokens = [t for row in seen(text_batches(CLS_TOKENIZER, [made.WORDS, made.WORDS], window=16)) for t in row]
    assert len({(t.document, t.position) for t in tokens}) == len(tokens)


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 18, 19, 20, 64, 100])
def test_tokens_bounds_the_counted_tokens_exactly(tokens: int) -> None:
    batches = list(text_batches(CLS_TOKENIZER, [made.WORDS] * 3, window=18, batch=2, tokens=tokens))
    assert sum(int(batch.counts.sum()) for batch in batches) == tokens
    for row in seen(batches):
        assert row[0].token == 2
        if len(row) > 2:
            assert row[-1].token == 3  # a shortened window keeps its [SEP]


def test_a_bound_reads_no_more_text_than_it_needs() -> None:
    def endless() -> Iterable[str]:
        while True:
            yield made.WORDS

    assert sum(int(b.counts.sum()) for b in text_batches(CLS_TOKENIZER, endless(), window=32, tokens=500)) == 500


def test_cutting_a_text_into_pieces_leaves_its_tokens_as_they_are(tokenizer: Any) -> None:
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


def test_pieces_do_not_depend_on_how_the_file_was_read() -> None:
    text = made.WORDS * 3
    chunks = [text[i : i + 7] for i in range(0, len(text), 7)]
    assert "".join(text_pieces(chunks, 50)) == text
    assert max(map(len, text_pieces(chunks, 50))) <= 50


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    assert list(text_pieces(["x" * 25], 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_every_window_of_an_unmarked_file_is_a_document(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(made.WORDS)
    batches = list(text_batches(made.byte_pairs(), text_documents(file), window=16, batch=3))
    assert {batch.unit for batch in batches} == {"windows"}
    rows = seen(batches)
    assert [row[0].document for row in rows] == list(range(len(rows)))
    assert all([t.position for t in row] == list(range(len(row))) for row in rows)
    assert [t.token for row in rows for t in row] == bare(made.byte_pairs(), made.WORDS)


def test_a_long_document_counts_its_positions_on() -> None:
    rows = seen(text_batches(made.byte_pairs(), [made.WORDS, "short"], window=16))
    first = [t for row in rows for t in row if t.document == 0]
    assert [t.position for t in first] == list(range(len(first)))
    assert max(t.offset for t in first) == 15


def test_special_tokens_in_the_text_itself_are_marked() -> None:
    (row,) = seen(text_batches(made.byte_pairs(), ["one<|end|>two"]))
    assert [t.token for t in row if t.special] == [0]


def test_without_special_tokens_there_are_none() -> None:
    (row,) = seen(text_batches(CLS_TOKENIZER, ["the fox"], special=False))
    assert [t.token for t in row] == bare(CLS_TOKENIZER, "the fox")
    assert not any(t.special for t in row)


def test_without_padding_only_windows_of_equal_length_share_a_batch() -> None:
    batches = list(text_batches(made.byte_pairs(), ["aa", "bb", "cc", "d", "ee"], batch=2, padding=False))
    assert [tuple(batch.counts.shape) for batch in batches] == [(2, 2), (1, 2), (1, 1), (1, 2)]
    assert all(batch.counts.all() and set(batch.inputs) == {"input_ids"} for batch in batches)


def test_the_decoder_sees_the_window_one_step_behind() -> None:
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


def test_bytes_stand_in_for_a_tokenizer() -> None:
    (row,) = seen(text_batches("bytes", ["né"]))
    assert [t.token for t in row] == list("né".encode())


# Where documents come from


def test_a_folder_gives_a_document_a_file_in_the_order_of_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.md").write_text("third")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "a2.jsonl").write_text('{"text": "second"}\n\n')
    (tmp_path / "ignored.bin").write_bytes(b"\x00")
    (tmp_path / ".hidden.txt").write_text("hidden")
    documents = text_documents(tmp_path)
    assert list(documents) == ["first", "second", "third"]
    assert documents.unit == "documents"


def test_a_folder_of_one_text_is_that_text(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text(made.WORDS)
    assert text_documents(tmp_path).unit == "windows"


def test_marks_part_documents_however_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "marked.txt"
    file.write_text("one\n<doc>\ntwo\nlines\n<doc>\nthree")
    for size in (1, 4, 1000):
        monkeypatch.setattr("anisoscope.data.text_sources.PIECE", size)
        assert list(text_documents(file, mark="<doc>")) == ["one", "two\nlines", "three"]
    assert text_documents(file, mark="<doc>").unit == "documents"


def test_standard_input_is_a_text_marked_texts_or_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    piped("plain text")
    assert list(text_documents("-")) == ["plain text"]
    assert text_documents("-").unit == "windows"
    piped("one\ftwo")
    assert list(text_documents("-", mark="\f")) == ["one", "two"]
    piped('{"body": "row"}\n')
    assert list(text_documents("-", field="body")) == ["row"]


def test_rows_of_jsonl_and_parquet_are_documents(tmp_path: Path) -> None:
    import pandas as pd

    texts = ["first", "second \ud83d", "dritter Text"]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    pd.DataFrame({"body": ["first", None, "last"], "other": [1, 2, 3]}).to_parquet(tmp_path / "rows.parquet")
    assert list(text_documents(tmp_path / "rows.jsonl", field="body")) == ["first", "second \ufffd", "dritter Text"]
    assert list(text_documents(tmp_path / "rows.parquet", field="body")) == ["first", "last"]
    with pytest.raises(InputError, match=r"no column 'text'\. Its columns are body, other"):
        list(text_documents(tmp_path / "rows.parquet"))


def test_a_dataset_is_streamed_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(name: str, config: str | None, **options: Any) -> list[dict[str, str]]:
        asked.update(name=name, config=config, **options)
        return [{"text": "row one"}, {"text": "row two"}]

    fake: Any = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert list(text_documents("datasets:org/wiki:small:test")) == ["row one", "row two"]
    assert asked == {"name": "org/wiki", "config": "small", "split": "test", "streaming": True}
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        list(text_documents("datasets:org/wiki"))


# What is wrong with a text is said in one line


@pytest.mark.parametrize("texts", [[], [""], ["  \n", "\t"]])
def test_an_empty_text_is_an_error(texts: list[str]) -> None:
    with pytest.raises(InputError, match="empty"):
        list(text_batches(CLS_TOKENIZER, texts))


def test_a_broken_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "fine"}\n{"text": "brok\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2 is not JSON"):
        list(text_documents(file))
    file.write_text('{"text": "fine"}\n{"body": "no text"}\n')
    with pytest.raises(InputError, match=r"line 2 has no text in field 'text' \(it has fields body\)"):
        list(text_documents(file))


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8"):
        list(text_documents(file))


def test_a_missing_text_suggests_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("words")
    with pytest.raises(InputError, match=r"(?i)did you mean .*corpus\.txt"):
        text_documents(tmp_path / "corpsu.txt")
    with pytest.raises(InputError, match=r"has no \.txt"):
        text_documents(_made(tmp_path / "empty"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="window is 0"):
        text_batches(CLS_TOKENIZER, ["a"], window=0)
    with pytest.raises(InputError, match="cannot hold text and 2 special tokens"):
        text_batches(CLS_TOKENIZER, ["a"], window=2)
    with pytest.raises(InputError, match="no tokenizer"):
        text_batches(None, ["a"])
    with pytest.raises(InputError, match="mark is empty"):
        list(text_documents("-", mark=""))


def test_an_id_beyond_the_embedding_is_named() -> None:
    with pytest.raises(InputError, match=r"gives id \d+ \('.*'\) but the model's embedding has 50 rows"):
        list(text_batches(made.byte_pairs(), ["the fox"], vocabulary=50))


# Stages with another number of positions


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.booleans(), min_size=1, max_size=12), length=st.integers(1, 12))
def test_a_pooled_position_counts_when_all_that_it_covers_counts(counts: list[bool], length: int) -> None:
    T = len(counts)
    column = torch.zeros(1, T, dtype=torch.int64)
    table = TokenTable(column + 5, column, column, column, torch.tensor([counts]), torch.zeros(1, T, dtype=torch.bool))
    pooled = table_of_length(table, length)
    expected = []
    for t in range(length):
        covered = [i for i in range(T) if i * length < (t + 1) * T and (i + 1) * length > t * T]
        expected.append(all(counts[i] for i in covered))
    assert pooled.counts[0].tolist() == expected
    assert pooled.document[0].tolist() == [5] * length
    if length != T:
        assert pooled.position[0].tolist() == list(range(length))


# Images


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "pictures")
    draw = np.random.default_rng(0)
    for n, mode in enumerate(["RGB", "L", "RGBA"]):
        Image.fromarray(draw.integers(0, 256, (20, 30, 3), dtype=np.uint8)).convert(mode).save(folder / f"{n}.png")
    return folder


def test_images_without_a_processor_are_resized_and_scaled(pictures: Path) -> None:
    batches = list(image_batches(None, pictures, batch=2, size=(8, 12)))
    assert [tuple(b.inputs["pixel_values"].shape) for b in batches] == [(2, 3, 8, 12), (1, 3, 8, 12)]
    with Image.open(pictures / "0.png") as image:
        resized = np.asarray(image.convert("RGB").resize((12, 8), Image.Resampling.BICUBIC), dtype=np.float64)
    expected = (resized / 255 - 0.5) / 0.5  # (h, w, c)
    assert np.allclose(batches[0].inputs["pixel_values"][0].permute(1, 2, 0).numpy(), expected, atol=1e-6)
    assert [b.document.flatten().tolist() for b in batches] == [[0, 1], [2]]
    assert {b.unit for b in batches} == {"images"}
    assert all((b.token == -1).all() and b.counts.all() for b in batches)


def test_an_unreadable_image_is_named(pictures: Path) -> None:
    (pictures / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"1\.png is not a readable image"):
        list(image_batches(None, pictures))


def test_a_vision_model_reads_a_folder_of_images(tmp_path: Path, pictures: Path) -> None:
    processor = made.hf.ViTImageProcessor(size={"height": 16, "width": 16})
    for folder in (
        made.save(tmp_path / "vit", made.hf.ViTModel(made.vit_config()), processor),
        made.save(tmp_path / "plain", made.hf.ViTModel(made.vit_config())),
    ):
        opened = open_model(folder)
        assert opened.modality == "image"
        (batch,) = model_batches(opened, pictures)
        states = opened.model(**batch.inputs).last_hidden_state  # (3, 5, 16): four patches and [CLS]
        assert table_of_length(batch, states.shape[1]).counts.sum() == 15


# Sound


def sine(hertz: float, rate: int, seconds: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate))


@pytest.mark.parametrize(
    ("rate", "to"), [(44_100, 16_000), (44_101, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_000)]
)
def test_a_resampled_sine_is_the_same_sine(rate: int, to: int) -> None:
    result = resample(torch.from_numpy(sine(440, rate, 1)), rate, to)
    assert len(result) == to
    inner = slice(to // 10, -to // 10)
    assert np.abs(result.numpy() - sine(440, to, 1))[inner].max() < 1e-4


def test_what_the_new_rate_cannot_carry_is_removed() -> None:
    result = resample(torch.from_numpy(sine(12_000, 44_100, 1)), 44_100, 16_000)
    assert result[1600:-1600].abs().max() < 1e-3


@pytest.mark.parametrize("samples", [1, 2, 7, 160, 441, 443])
def test_a_resampled_clip_has_the_length_of_its_time(samples: int) -> None:
    assert len(resample(torch.zeros(samples), 44_100, 16_000)) == -(-samples * 160 // 441)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "recordings")
    soundfile.write(folder / "a.wav", sine(440, 16_000, 0.5), 16_000)
    soundfile.write(folder / "b.flac", np.stack([sine(440, 8_000, 2.25)] * 2, axis=1), 8_000)
    (folder / "a.txt").write_text("the fox")
    return folder


def test_recordings_are_cut_into_clips_and_never_padded(recordings: Path) -> None:
    batches = list(audio_batches(None, recordings, batch=4, seconds=1))
    assert [tuple(b.inputs["input_values"].shape) for b in batches] == [(1, 8_000), (2, 16_000), (1, 4_000)]
    assert [b.document.flatten().tolist() for b in batches] == [[0], [1, 2], [3]]
    assert {b.unit for b in batches} == {"clips"}
    for batch in batches:
        values = batch.inputs["input_values"]
        assert torch.allclose(values.mean(dim=1), torch.zeros(len(values)), atol=1e-5)
        assert torch.allclose(values.std(dim=1), torch.ones(len(values)), atol=1e-3)


def test_a_raw_sound_model_reads_recordings_with_and_without_its_extractor(tmp_path: Path, recordings: Path) -> None:
    model = made.hf.Wav2Vec2Model(made.wav2vec2_config())
    plain = open_model(made.save(tmp_path / "plain", model))
    fitted = open_model(made.save(tmp_path / "fitted", model, made.hf.Wav2Vec2FeatureExtractor()))
    assert (plain.modality, plain.processor) == ("audio", None)
    for ours, theirs in zip(
        model_batches(plain, recordings, seconds=1), model_batches(fitted, recordings, seconds=1), strict=True
    ):
        assert torch.allclose(ours.inputs["input_values"], theirs.inputs["input_values"], atol=1e-4)
        states = fitted.model(**theirs.inputs).last_hidden_state
        assert table_of_length(theirs, states.shape[1]).counts.all()


def test_the_silence_that_fills_a_fixed_length_does_not_count(tmp_path: Path, recordings: Path) -> None:
    words = made.byte_pairs(310)
    processor = made.hf.WhisperProcessor(made.whisper_extractor(), words)
    model = made.hf.WhisperForConditionalGeneration(made.whisper_config())
    opened = open_model(made.save(tmp_path / "whisper", model, processor))
    assert opened.modality == "audio"
    first, *rest = model_batches(opened, recordings)
    assert first.counts.shape == (1, 100)
    assert int(first.counts.sum()) == 50  # half a second of the fixed one
    outputs = opened.model(**first.inputs)
    assert int(table_of_length(first, outputs.encoder_last_hidden_state.shape[1]).counts.sum()) == 25
    assert first.decoder is not None
    assert first.decoder.token[0].tolist() == [1, *bare(words, "the fox")]
    assert first.decoder.special[0].tolist() == [True] + [False] * (first.decoder.token.shape[1] - 1)
    assert all(batch.decoder is not None and batch.decoder.token.shape[1] == 1 for batch in rest)


def test_sound_that_cannot_be_used_is_named(recordings: Path) -> None:
    soundfile.write(recordings / "c.wav", np.zeros(100), 16_000)
    with pytest.raises(InputError, match=r"c\.wav is shorter than"):
        list(audio_batches(None, recordings, seconds=1))
    (recordings / "c.wav").write_bytes(b"noise")
    with pytest.raises(InputError, match=r"c\.wav: cannot be read"):
        list(audio_batches(None, recordings, seconds=1))
    with pytest.raises(InputError, match="longer than the 1 s that the model takes"):
        audio_batches(made.whisper_extractor(), recordings, seconds=3)


# Any model


MODELS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "gpt2": lambda: (made.hf.GPT2Model(made.gpt2_config()), [made.byte_pairs()]),
    "bert": lambda: (made.hf.BertModel(made.bert_config()), [made.word_pieces()]),
    "t5": lambda: (made.hf.T5Model(made.t5_config()), [made.sentence_pieces()]),
    "canine": lambda: (made.hf.CanineModel(made.canine_config()), []),
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_text_model_reads_its_batches(tmp_path: Path, kind: str) -> None:
    model, processors = MODELS[kind]()
    opened = open_model(made.save(tmp_path / kind, model, *processors))
    assert opened.modality == "text"
    for batch in model_batches(opened, [made.WORDS, "The end"], batch=2):
        states = opened.model(**batch.inputs).last_hidden_state
        assert states.isfinite().all()
        assert (batch.decoder is not None) == (kind == "t5")
        assert batch.counts.shape[1] <= {"gpt2": 64, "bert": 48, "t5": 512, "canine": 128}[kind]


def test_padding_changes_no_state(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"))
    texts = [made.WORDS[:70], "The end"]
    (together,) = model_batches(opened, texts)
    alone = [next(iter(model_batches(opened, [text]))) for text in texts]
    for b in range(2):
        padded = opened.model(**together.inputs).last_hidden_state[b, : int(together.counts[b].sum())]
        assert torch.allclose(padded, opened.model(**alone[b].inputs).last_hidden_state[0], atol=1e-6)


def test_a_byte_model_without_tokenizer_reads_raw_bytes_if_asked(tmp_path: Path) -> None:
    opened = open_model(made.save(tmp_path / "bytes", made.hf.GPT2Model(made.gpt2_config(vocab_size=256))))
    assert opened.processor is None
    with pytest.raises(InputError, match="no tokenizer"):
        model_batches(opened, ["text"])
    (batch,) = model_batches(opened, ["text"], tokenizer="bytes")
    assert batch.token.tolist() == [list(b"text")]
    large = open_model(made.gpt2(tmp_path / "large", vocab_size=500))
    with pytest.raises(InputError, match="the model has 500"):
        model_batches(large, ["text"], tokenizer="bytes")


def test_a_window_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"))
    with pytest.raises(InputError, match="longer than the 64 positions"):
        model_batches(opened, ["text"], window=65)
