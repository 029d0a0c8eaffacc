"""Separation of labels against scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.embedding_quality.label_separation import (
    between_share,
    common_label,
    read_labels,
    right_votes,
    silhouettes,
)
from anisoscope.errors import InputError
from tests.oracles import embeddings as oracle


def groups(apart: float) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    label = torch.arange(90) % 3
    return torch.randn(90, 4, generator=draw, dtype=torch.float64) + apart * label[:, None], label


def test_silhouettes_are_those_of_scikit_learn() -> None:
    reference: Any = pytest.importorskip("sklearn.metrics")
    x, label = groups(1.0)
    label[0] = 3  # alone in its group
    wanted = reference.silhouette_samples(x.numpy(), label.numpy())
    assert silhouettes(x, label).numpy() == pytest.approx(wanted, abs=1e-12)


def test_votes_are_those_of_the_neighbours() -> None:
    x, label = groups(1.0)
    near = oracle.neighbours(x, 10)
    right = []
    for i, row in enumerate(near):
        counts = np.bincount(label.numpy()[row], minlength=3)
        tied = [c for c in range(3) if counts[c] == counts.max()]
        first = next(int(label[j]) for j in row if int(label[j]) in tied)
        right.append(float(first == int(label[i])))
    assert right_votes(torch.from_numpy(near), label).tolist() == right


def test_the_share_between_groups_is_one_for_separate_points_and_small_for_noise() -> None:
    label = torch.arange(90) % 3
    assert between_share(label[:, None].double().expand(90, 2), label) == pytest.approx(1.0)
    x, _ = groups(0.0)
    assert between_share(x, label) < 0.1
    assert common_label(torch.tensor([0, 0, 0, 1])) == 0.75


def test_labels_are_read_from_files(tmp_path: Path) -> None:
    for text in ("b\na\nb\n", "label\nb\na\nb\n", "id,label\n1,b\n2,a\n3,b\n", "1\tb\n2\ta\n3\tb\n"):
        (tmp_path / "labels.csv").write_text(text)
        number, names = read_labels(tmp_path / "labels.csv", 3)
        assert (number.tolist(), names) == ([1, 0, 1], ["a", "b"])
    np.save(tmp_path / "labels.npy", np.array([7, 3, 7]))
    assert read_labels(tmp_path / "labels.npy", 3)[0].tolist() == [1, 0, 1]
    with pytest.raises(InputError, match="2 labels for 3 rows"):
        read_labels(["a", "b"], 3)
    with pytest.raises(InputError, match="At least two groups"):
        read_labels(["a", "a"], 2)


@pytest.mark.parametrize("name", ["labels.csv", "labels.npy"])
def test_labels_in_a_pipe_are_refused_without_waiting_for_its_writer(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="it is not a regular file"):
        read_labels(tmp_path / name, 3)
