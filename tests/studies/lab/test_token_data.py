"""Token ids on disk, windows and baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.studies.lab.corpora import Text, open_text
from anisoscope.studies.lab.token_data import Data, _contains, open_data, prepare
from tests.oracles import lab as slow


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return prepare(open_text("topics"), tmp_path_factory.mktemp("topics") / "data")


def small(text: str = "abracadabra, said the cat to the bat. " * 40) -> Text:
    return Text("small", lambda: iter([text[i : i + 100] for i in range(0, len(text), 100)]))


def test_the_embedded_text_is_real_prose_and_split_by_whole_documents(topics: Data) -> None:
    documents = list(open_text("topics"))
    assert len(topics.train) + len(topics.validation) == sum(map(len, documents))
    assert 0.05 < len(topics.validation) / len(topics.train) < 0.15
    judged = topics.tokenizer.decode(topics.validation.tolist())
    held_out = [document for document in documents if document in judged]
    assert sum(map(len, held_out)) == len(judged)
    assert "function" in judged
    paragraphs = [part.strip() for document in documents for part in document.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert topics.baselines["bigram"] < topics.baselines["unigram"] < np.log(topics.vocabulary)


def test_baselines_agree_with_counting_one_by_one(tmp_path: Path) -> None:
    data = prepare(small(), tmp_path / "data")
    train, judged = data.train.tolist(), data.validation.tolist()
    assert data.baselines["unigram"] == pytest.approx(slow.unigram_loss(train, judged, data.vocabulary))
    assert data.baselines["bigram"] == pytest.approx(slow.bigram_loss(train, judged, data.vocabulary))


def test_pairs_across_chunks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare(small(), tmp_path / "data")
    whole = data.baselines
    monkeypatch.setattr("anisoscope.studies.lab.token_data._CHUNK", 7)
    assert open_data(tmp_path / "data").baselines == pytest.approx(whole)


def test_windows_depend_on_the_seeds_alone(topics: Data) -> None:
    again = open_data(topics.folder)
    assert torch.equal(topics.windows(8, 32, 1, 2, 3), again.windows(8, 32, 1, 2, 3))
    assert not torch.equal(topics.windows(8, 32, 1, 2, 3), topics.windows(8, 32, 1, 2, 4))
    held_out = topics.held_out(16, 64)
    assert held_out.shape == (16, 64)
    text = topics.validation.tolist()
    places = [i for i in range(0, len(text), 64) if text[i : i + 64] in held_out.tolist()]
    assert len(places) >= 16


def test_held_out_windows_are_not_in_the_training_text(topics: Data, tmp_path: Path) -> None:
    train = topics.tokenizer.decode(topics.train.tolist())
    windows = {topics.tokenizer.decode(row.tolist()) for row in topics.held_out(10**6, 24)}
    ends = range(24, len(topics.validation) + 1, 24)
    every = [topics.tokenizer.decode(topics.validation[end - 24 : end].tolist()) for end in ends]
    assert not any(window in train for window in windows)
    assert windows == {window for window in every if window not in train}
    assert len(windows) < len(set(every))
    repeated = prepare(small("ab" * 1000), tmp_path / "data")  # nothing else is there: better those than none
    assert repeated.held_out(4, 10).shape == (4, 10)


def test_ids_of_two_bytes_are_compared_from_their_first_byte(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + i % 300) for i in range(8000))
    data = prepare(Text("wide", lambda: iter([text[i : i + 200] for i in range(0, 8000, 200)])), tmp_path / "data")
    assert data.train.dtype == np.uint16
    assert _contains(data.train.tobytes(), data.train[5:9].tobytes(), 2)
    assert not _contains(data.train.tobytes(), data.train.tobytes()[1:5], 2)


def test_the_last_token_can_be_drawn(tmp_path: Path) -> None:
    data = prepare(small("ab" * 1000), tmp_path / "data")
    ends = {tuple(row.tolist()) for step in range(50) for row in data.windows(64, len(data.train) - 1, step)}
    assert len(ends) == 2  # windows one token shorter than the text: both places occur


def test_a_folder_is_reused_and_refuses_another_text(tmp_path: Path) -> None:
    first = prepare(small(), tmp_path / "data")
    before = (tmp_path / "data" / "train.bin").stat().st_mtime_ns
    assert np.array_equal(prepare(small(), tmp_path / "data").train, first.train)
    assert (tmp_path / "data" / "train.bin").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="another text"):
        prepare(small("something else entirely " * 80), tmp_path / "data")
