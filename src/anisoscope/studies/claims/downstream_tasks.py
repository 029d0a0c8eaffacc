"""Scores of a small model on downstream tasks, and the two tasks that come with the package.

The tasks are which package a docstring comes from, and which signature belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from statistics import fmean

import torch
from torch import Tensor, nn

from anisoscope.studies.claims.hidden_states import states
from anisoscope.studies.claims.task_files import FOLDS, TextTask
from anisoscope.studies.lab.docstrings import PACKAGES, Docstring, docstrings
from anisoscope.studies.lab.token_data import Data
from anisoscope.studies.lab.tokens import encode

_EACH = 120  # docstrings per package
_STRIDE = 5  # one docstring in this number is used, so that they come from many files
_LONGEST = 400  # characters of a text
_RIDGE = 1e-2  # of the mean variance
_BATCH = 64


@lru_cache(maxsize=1)
def built_in_tasks() -> tuple[TextTask, ...]:
    """Return the tasks of the package. The name of the package is removed from texts and signatures.

    Guessing the package gives a score of one quarter, guessing the signature about 0.01.
    """
    chosen: list[Docstring] = []
    for package in PACKAGES:
        usable = (each for each in docstrings([package]) if each.text.isascii() and "(" in each.signature)
        chosen += islice(usable, 0, _EACH * _STRIDE, _STRIDE)
    texts = tuple(_neutral(each.text, each.package) for each in chosen)
    signatures = tuple(_neutral(each.signature, each.package) for each in chosen)
    return (
        TextTask("package of a docstring", texts, labels=tuple(each.package for each in chosen)),
        TextTask("signature of a docstring", texts, matches=signatures),
    )


def judged_tasks(given: Sequence[TextTask]) -> tuple[TextTask, ...]:
    """Return the tasks that rules use: those of the user, or those of the package if there are none."""
    return tuple(given) or built_in_tasks()


def shown_tasks(given: Sequence[TextTask]) -> tuple[TextTask, ...]:
    """Return the tasks that are only shown: those of the package, if the user gave others."""
    return built_in_tasks() if given else ()


def judged_note(given: Sequence[TextTask]) -> str:
    """Describe the tasks of the user in what was run; empty if there are none."""
    if not given:
        return ""
    names = ", ".join(task.description for task in given)
    return f"judged on the given tasks {names}; those of the package are only shown"


def task_scores(model: nn.Module, data: Data, context: int, tasks: Sequence[TextTask]) -> dict[str, float]:
    """Score a model on tasks, from the mean of its final states over a text.

    A label is predicted by a linear probe that is fitted on the other folds; the score is the share of right ones. For
    retrieval, both sets of vectors are centred and compared by their cosine; the score is the mean reciprocal rank of
    the right match among all.

    Args:
        model: A lab model.
        data: Its tokens, whose tokenizer is used.
        context: Tokens per text, at most.
        tasks: The tasks.

    Returns:
        The score of each task by its name.
    """
    vectors: dict[tuple[str, ...], Tensor] = {}  # tasks may share their texts

    def of(texts: tuple[str, ...]) -> Tensor:
        if texts not in vectors:
            vectors[texts] = _vectors(model, data, [text[:_LONGEST] for text in texts], context)
        return vectors[texts]

    return {
        task.name: _accuracy(of(task.texts), task.labels)
        if task.labels
        else _reciprocal_rank(of(task.texts), of(task.matches))
        for task in tasks
    }


def mean_score(scores: dict[str, float], tasks: Sequence[TextTask]) -> float:
    """Return the mean score of some tasks."""
    return fmean(scores[task.name] for task in tasks)


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


def _accuracy(x: Tensor, labels: Sequence[str]) -> float:
    """Share of texts whose label a probe predicts, (n, d)."""
    names = list(dict.fromkeys(labels))
    label = torch.tensor([names.index(each) for each in labels])
    fold = torch.arange(len(x)) % FOLDS
    right = sum(float((_predicted(x, label, fold == f) == label[fold == f]).sum()) for f in range(FOLDS))
    return right / len(x)


def _reciprocal_rank(x: Tensor, y: Tensor) -> float:
    a, b = (nn.functional.normalize(each - each.mean(0), dim=1) for each in (x, y))
    similarity = a @ b.T
    rank = (similarity >= similarity.diagonal()[:, None]).sum(1)  # 1 is the best
    return float((1 / rank).mean())


def _predicted(x: Tensor, label: Tensor, held: Tensor) -> Tensor:
    """Labels of the held-out rows by ridge regression on one-hot targets."""
    mean = x[~held].mean(0)
    known, unknown = x[~held] - mean, x[held] - mean
    classes = int(label.max()) + 1
    target = nn.functional.one_hot(label[~held], classes).double() - 1 / classes
    gram = known.T @ known
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return (unknown @ torch.linalg.solve(gram + ridge, known.T @ target)).argmax(1)
