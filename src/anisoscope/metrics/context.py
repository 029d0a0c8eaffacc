"""How much a word's vector depends on its context: needs token ids, and documents for the sentence measure."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.sample import Sample

_OCCURRENCES = 5  # a word must be in the sample this often
_WORDS = 64  # the most frequent words are enough for a mean over words


@metric(
    Sample, low=-2, high=2, keeps={"rotation", "scale", "row-scale"}, paper="ethayarajh2019", requires={"tokens"},
)  # fmt: skip
def self_similarity(sample: Sample) -> Value:
    """Average cosine between occurrences of one word in different contexts, above that of any two rows.

    The mean over words of the mean pairwise cosine, minus the sample's mean cosine: 0 when a word is as unlike itself
    as anything else, 1 − baseline when context does not matter.
    """
    unit = _unit(sample)
    words = _words(sample)
    own = sum(_pair_cosine(unit[word]) for word in words) / len(words)
    return Value(own - _pair_cosine(unit), n=sum(len(word) for word in words), note=f"{len(words)} words")


@metric(
    Sample, low=-2, high=2, keeps={"rotation", "scale", "row-scale"}, paper="ethayarajh2019",
    requires={"documents"},
)  # fmt: skip
def intra_sentence_similarity(sample: Sample) -> Value:
    """Average cosine between a row and the mean of the other sampled rows of its document, above any two rows'.

    The published measure compares with the mean of the sentence, the word itself included; here the row is left out
    of its mean, because the sample holds only some of a document's rows.
    """
    unit = _unit(sample)
    document = sample.rows.tokens.document
    _, which, count = document.unique(return_inverse=True, return_counts=True)
    sums = unit.new_zeros(len(count), unit.shape[1]).index_add_(0, which, unit)
    several = count[which] > 1
    if not several.any():
        raise Undefined("no document has two rows in the sample", "give longer documents or a larger sample")
    others = sums[which[several]] - unit[several]
    length = others.norm(dim=1).clamp(min=1e-300)
    own = float(((unit[several] * others).sum(1) / length).mean())
    return Value(own - _pair_cosine(unit), n=int(several.sum()))


@metric(
    Sample, low=-1, high=1, keeps={"rotation", "scale"}, paper="ethayarajh2019", requires={"tokens"},
)  # fmt: skip
def max_explainable_variance(sample: Sample) -> Value:
    """How well one static vector could stand for all occurrences of a word, above that of random groups of rows.

    The mean over words of σ1²/Σσ² of their occurrences, minus the same for groups of equal size drawn in key order.
    """
    x = sample.x.double()
    words = _words(sample)
    own, random = 0.0, 0.0
    start = 0
    for word in words:
        own += _first_share(x[word])
        group = torch.arange(start, start + len(word)) % len(x)
        random += _first_share(x[group])
        start += len(word)
    return Value((own - random) / len(words), n=sum(len(word) for word in words), note=f"{len(words)} words")


def _words(sample: Sample) -> list[Tensor]:
    """For each of the most frequent token ids, the places of its occurrences."""
    token = sample.rows.tokens.token
    known = (token >= 0).nonzero()[:, 0]
    if not len(known):
        raise Undefined("the rows carry no token ids", "measure a model on text, where tokens are known")
    order = known[torch.sort(token[known], stable=True).indices]
    count = torch.unique_consecutive(token[order], return_counts=True)[1]
    groups = [group for group in order.split(count.tolist()) if len(group) >= _OCCURRENCES]
    groups = sorted(groups, key=len, reverse=True)[:_WORDS]
    if not groups:
        raise Undefined(f"no word occurs {_OCCURRENCES} times in the sample", "give more tokens")
    return groups


def _unit(sample: Sample) -> Tensor:
    x = sample.x.double()
    if len(x) < 2:
        raise Undefined(f"the sample holds {len(x)} rows", "give at least two")
    length = x.norm(dim=1, keepdim=True)
    return torch.where(length > 0, x / length, 0.0)


def _pair_cosine(unit: Tensor) -> float:
    n = len(unit)
    total = unit.sum(0)
    return (float(total @ total) - float(unit.square().sum())) / (n * (n - 1))


def _first_share(x: Tensor) -> float:
    values = torch.linalg.eigvalsh(x @ x.T)
    return float(values[-1] / values.sum().clamp(min=1e-300))
