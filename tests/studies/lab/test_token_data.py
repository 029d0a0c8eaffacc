"""Texts, tokenizers and token ids of the lab."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.studies.lab.corpora import Text, open_text, zipf_entropy, zipf_law
from anisoscope.studies.lab.enwik8 import articles, plain_text
from anisoscope.studies.lab.targets import isoscore_star, masked_token
from anisoscope.studies.lab.token_data import Data, _contains, open_data, prepare
from anisoscope.studies.lab.tokens import encode, make_tokenizer
from tests.oracles import lab as slow

DUMP = """<mediawiki>
  <page><title>Cat</title><revision>
    <text xml:space="preserve">The '''cat''' (''Felis catus'') is a [[mammal|small mammal]].{{cite|a={{b}}}}
== Life ==
* It sleeps [http://cats.org a lot].&lt;br /&gt; &lt;math&gt;x^2&lt;/math&gt;
[[Image:Cat.jpg|thumb|A [[cat]] asleep]]
&lt;code&gt;print(1)&lt;/code&gt; {| class="x"
| cell
|} End &amp;amp; done.
[[Category:Cats]] [[fr:Chat]]</text></revision></page>
  <page><text xml:space="preserve">#REDIRECT [[Cat]]</text></page>
  <page><text xml:space="preserve">Dogs   bark.</text></page>
  <page><text xml:space="preserve">This article is cut sho"""


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


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_tokenizers_give_the_text_back_and_do_not_care_how_it_is_cut(kind: str) -> None:
    text = "Ein naïver Satz: “quoted”,\n\n\ttabbed — and 数字 123.\n" * 200
    tokenizer = make_tokenizer(kind, [text], 300 if kind == "bpe" else None)
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert max(ids) < tokenizer.get_vocab_size() - 2  # the last two are special


def test_bytes_have_their_value_as_id() -> None:
    text = "aé数\n\x00\xad"
    assert encode(make_tokenizer("byte", []), text) == list(text.encode())


def test_merges_make_a_text_shorter() -> None:
    text = "the cat sat on the mat, the cat sat on the hat. " * 50
    assert len(encode(make_tokenizer("bpe", [text], 300), text)) < len(text) / 2


def test_characters_beyond_the_limit_are_unknown(tmp_path: Path) -> None:
    data = prepare(Text("t", lambda: iter(["aaaaabbbbcccdd" * 20] * 40)), tmp_path / "data", symbols=3)
    assert [data.tokenizer.id_to_token(i) for i in range(5)] == ["a", "b", "c", "[UNK]", "[MASK]"]
    assert data.info["unknown"] == 2 * 20 * 40
    assert data.mask_id == 4


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


def test_a_folder_is_opened_again_and_refused_to_another_text(tmp_path: Path) -> None:
    first = prepare(small(), tmp_path / "data")
    before = (tmp_path / "data" / "train.bin").stat().st_mtime_ns
    assert np.array_equal(prepare(small(), tmp_path / "data").train, first.train)
    assert (tmp_path / "data" / "train.bin").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="another text"):
        prepare(small("something else entirely " * 80), tmp_path / "data")


@pytest.mark.parametrize(
    ("source", "content", "words"),
    [
        ("nowhere.txt", None, "No text at"),
        ("latin.txt", "caf\xe9".encode("latin-1") * 100, "not UTF-8"),
        ("short.txt", b"too short", "fewer than one context"),
        ("empty.txt", b"", "fewer than one context"),
        ("zipf:exponant=1", None, "exponent="),
        ("zipf:vocabulary=1", None, "vocabulary > 1"),
        ("enwik8:plain.txt", b"just text " * 100, "no <text>"),
    ],
)
def test_texts_that_cannot_be_used_say_why(
    source: str, content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(source.rpartition(":")[2]).write_bytes(content)
    with pytest.raises(InputError, match=words):
        prepare(open_text(source), tmp_path / "data", context=64)


def test_a_file_is_read_whole_in_pieces_that_end_with_a_line(tmp_path: Path) -> None:
    text = "".join(f"line {i} of the file\n" for i in range(5000)) + "x" * 300_000
    (tmp_path / "t.txt").write_text(text)
    pieces = list(open_text(tmp_path / "t.txt"))
    assert "".join(pieces) == text
    assert len(pieces) > 10
    assert all(piece.endswith("\n") for piece in pieces[:4])


# --- synthetic ---


def test_zipf_tokens_follow_their_law_whatever_is_copied() -> None:
    documents = list(open_text("zipf:exponent=1.3,vocabulary=20,copy=0.6,lag=3,length=200000"))
    counts = Counter("".join(documents))
    share = np.array([counts[chr(0x4E00 + k)] for k in range(20)]) / sum(counts.values())
    # copies make neighbours depend on each other: about n·(1 − copy)/(1 + copy) independent draws
    error = np.sqrt(zipf_law(20, 1.3) / (sum(counts.values()) * 0.25))
    assert np.all(np.abs(share - zipf_law(20, 1.3)) < 5 * error)


def test_zipf_tokens_repeat_the_one_before_as_often_as_asked() -> None:
    ids = np.array([ord(c) for c in next(iter(open_text("zipf:vocabulary=50,copy=0.6,lag=3")))])
    law = zipf_law(50, 1.0)
    expected = 0.6 + 0.4 * (law**2).sum()
    assert np.mean(ids[3:] == ids[:-3]) == pytest.approx(expected, abs=0.03)
    assert np.mean(ids[2:] == ids[:-2]) == pytest.approx((law**2).sum(), abs=0.03)


def test_the_entropy_of_zipf_sequences_is_that_of_all_pairs() -> None:
    assert zipf_entropy(7, 1.2, 0.4) == pytest.approx(slow.zipf_entropy(7, 1.2, 0.4))
    assert zipf_entropy(4, 0.0, 0.0) == pytest.approx(np.log(4))


# --- enwik8 ---


def test_articles_are_what_a_reader_sees(tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_text(DUMP)
    found = list(articles(tmp_path / "enwik8"))
    assert len(found) == 2
    assert found[0].splitlines()[0] == "The cat (Felis catus) is a small mammal."
    assert "It sleeps a lot." in found[0]
    assert "End & done." in found[0]
    for gone in ("Image", "thumb", "asleep", "print", "x^2", "cite", "cell", "Category", "Chat", "http", "<", "[", "="):
        assert gone not in found[0]
    assert found[1] == "Dogs bark.\n"


def test_unclosed_markup_comes_through_without_hanging() -> None:
    assert "text" in plain_text("[[Image:a.jpg|thumb text {{open [[link")
    assert plain_text("&lt;!-- hidden --&gt;seen [[:Category:Cats|cats]] and [[Paris]]") == "seen  and Paris".replace(
        "  ", " "
    )


# --- objectives ---


def test_masking_plays_berts_game() -> None:
    ids = torch.randint(0, 50, (400, 128), generator=torch.Generator().manual_seed(0))
    batch = masked_token(ids, 51, 0.15, 3)
    asked = batch["labels"] != -100
    assert float(asked.float().mean()) == pytest.approx(0.15, abs=0.005)
    assert torch.equal(batch["labels"][asked], ids[asked])
    assert torch.equal(batch["input_ids"][~asked], ids[~asked])
    now = batch["input_ids"][asked]
    assert float((now == 51).float().mean()) == pytest.approx(0.8, abs=0.015)
    assert float((now == ids[asked]).float().mean()) == pytest.approx(0.1 + 0.1 / 51, abs=0.015)
    again = masked_token(ids, 51, 0.15, 3)
    assert torch.equal(again["input_ids"], batch["input_ids"])
    assert bool((masked_token(ids[:1, :4], 51, 0.0, 3)["labels"] != -100).any())


@pytest.mark.parametrize("shrinkage", [0.0, 0.2, 1.0])
def test_isoscore_star_is_that_of_the_shrunk_eigenvalues(shrinkage: float) -> None:
    x = torch.randn(300, 12, generator=torch.Generator().manual_seed(4)) * torch.linspace(3, 0.1, 12) + 5
    x.requires_grad_()
    score = isoscore_star(x, shrinkage)
    assert float(score.detach()) == pytest.approx(slow.isoscore_star(x.detach().numpy(), shrinkage), rel=1e-4)
    score.backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
