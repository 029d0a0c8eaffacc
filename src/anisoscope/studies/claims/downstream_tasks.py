"""Downstream tasks for small models: which package a docstring comes from, and which signature belongs to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor, nn

from anisoscope.studies.claims.hidden_states import states
from anisoscope.studies.lab.docstrings import PACKAGES, Docstring, docstrings
from anisoscope.studies.lab.token_data import Data
from anisoscope.studies.lab.tokens import encode

_EACH = 120  # docstrings per package
_STRIDE = 5  # one docstring in this number is used, so that they come from many files
_LONGEST = 400  # characters of a docstring
_RIDGE = 1e-2  # of the mean variance
_FOLDS = 4
_BATCH = 64


@dataclass(frozen=True)
class TaskScores:
    """Scores of a model.

    Attributes:
        package: Share of docstrings whose package a linear probe predicts; guessing gives one quarter.
        retrieval: Mean reciprocal rank of the right signature among all, for each docstring; guessing gives about 0.01.
    """

    package: float
    retrieval: float


@lru_cache(maxsize=1)
def _examples() -> tuple[Docstring, ...]:
    chosen: list[Docstring] = []
    for package in PACKAGES:
        usable = (each for each in docstrings([package]) if each.text.isascii() and "(" in each.signature)
        chosen += islice(usable, 0, _EACH * _STRIDE, _STRIDE)
    return tuple(chosen)


def task_scores(model: nn.Module, data: Data, context: int) -> TaskScores:
    """Score a model on both tasks, from the mean of its final states over a text.

    The name of the package is removed from the text. Each fold of docstrings is predicted by a probe that is fitted on
    the others. For retrieval, both sets of vectors are centred and compared by their cosine.

    Args:
        model: A lab model.
        data: Its tokens, whose tokenizer is used.
        context: Tokens per text, at most.
    """
    examples = _examples()
    x = _vectors(model, data, [_neutral(each.text, each.package) for each in examples], context)
    y = _vectors(model, data, [_neutral(each.signature, each.package) for each in examples], context)
    label = torch.tensor([PACKAGES.index(each.package) for each in examples])
    fold = torch.arange(len(x)) % _FOLDS
    right = sum(float((_predicted(x, label, fold == f) == label[fold == f]).sum()) for f in range(_FOLDS))
    a, b = (nn.functional.normalize(each - each.mean(0), dim=1) for each in (x, y))
    similarity = a @ b.T
    rank = (similarity >= similarity.diagonal()[:, None]).sum(1)  # 1 is the best
    return TaskScores(right / len(x), float((1 / rank).mean()))


def _neutral(text: str, package: str) -> str:
    return re.sub(package, "package", text, flags=re.IGNORECASE)[:_LONGEST]


def _vectors(model: nn.Module, data: Data, texts: list[str], context: int) -> Tensor:
    """The mean final state of each text, (texts, d)."""
    ids = [encode(data.tokenizer, text)[:context] or [0] for text in texts]
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    vectors: list[Tensor] = [torch.zeros(0)] * len(ids)
    for length in sorted({len(each) for each in ids}):
        same = [index for index in order if len(ids[index]) == length]
        for start in range(0, len(same), _BATCH):
            part = same[start : start + _BATCH]
            batch = {"input_ids": torch.tensor([ids[index] for index in part])}
            rows = states(model, [batch], ["final"])["final"].view(len(part), length, -1)
            for index, vector in zip(part, rows.mean(1).double(), strict=True):
                vectors[index] = vector
    return torch.stack(vectors)


def _predicted(x: Tensor, label: Tensor, held: Tensor) -> Tensor:
    """Labels of the held-out rows by ridge regression on one-hot targets."""
    mean = x[~held].mean(0)
    known, unknown = x[~held] - mean, x[held] - mean
    target = nn.functional.one_hot(label[~held], len(PACKAGES)).double() - 1 / len(PACKAGES)
    gram = known.T @ known
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return (unknown @ torch.linalg.solve(gram + ridge, known.T @ target)).argmax(1)
