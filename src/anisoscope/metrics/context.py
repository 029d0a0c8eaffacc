"""How much the vector of a word depends on its context."""

from __future__ import annotations

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.words import AnyTwo, Sentences, Words


@metric(
    Words, AnyTwo, low=-2, high=2, keeps={"rotation", "scale", "row-scale"}, paper="ethayarajh2019",
    requires={"tokens"},
)  # fmt: skip
def self_similarity(words: Words, any_two: AnyTwo) -> Value:
    """Average cosine between occurrences of the same word in different contexts, minus that of any two rows.

    The mean over words of the mean pairwise cosine, minus the mean cosine of the sample: 0 if occurrences of a word are
    no more similar than any two rows, 1 − baseline if context does not matter. Computed for the 64 most frequent words
    of the sample.
    """
    _require_words(words)
    own = words.each.cosines()
    repeated = own.isfinite()
    return Value(
        float(own[repeated].mean()) - _baseline(any_two),
        n=int(words.each.rows.sum()),
        note=_over_words(int(repeated.sum())),
    )


@metric(
    Sentences, AnyTwo, low=-2, high=2, keeps={"rotation", "scale", "row-scale"}, paper="ethayarajh2019",
    requires={"documents"},
)  # fmt: skip
def intra_sentence_similarity(sentences: Sentences, any_two: AnyTwo) -> Value:
    """Average cosine between a row and the mean of the other sampled rows of its document, minus that of any two rows.

    The published measure includes the row itself in the mean of its sentence. Here it is left out, because the sample
    holds only some rows of each document.
    """
    if not len(sentences.cosine):
        raise Undefined("no document has two rows in the sample", "give longer documents or a larger sample")
    return Value(float(sentences.cosine.mean()) - _baseline(any_two), n=len(sentences.cosine))


@metric(
    Words, low=-1, high=1, keeps={"rotation", "scale"}, paper="ethayarajh2019", requires={"tokens"},
)  # fmt: skip
def max_explainable_variance(words: Words) -> Value:
    """How well one static vector can replace all occurrences of a word, minus the same for random groups of rows.

    The mean over words of σ1²/Σσ² of at most 32 occurrences, minus that of random groups of the same size.
    """
    _require_words(words)
    own, random = words.first_shares()
    present = (words.block[0] >= 0).any(1)
    n = int((words.block[0] >= 0).sum())
    return Value(float((own - random)[present].mean()), n=n, note=_over_words(int(present.sum())))


def _over_words(words: int) -> str:
    return f"over {words:,} word{'s' * (words > 1)}"


def _require_words(words: Words) -> None:
    if not words.each.rows.shape[1]:
        raise Undefined("no word occurs 5 times in the sample", "measure a model on text, and on more tokens")
    if not bool((words.each.rows.sum(0) > 1).any()):
        raise Undefined("no word occurs twice in the remaining rows", "give more documents")


def _baseline(any_two: AnyTwo) -> float:
    rows = int(any_two.sums.rows.sum())
    if rows < 2:
        raise Undefined(f"the sample holds {rows} rows", "give at least two")
    return float(any_two.sums.cosines()[0])
