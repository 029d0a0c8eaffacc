"""For models that do not name their untied output matrix, the input matrix was silently measured instead."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.measure_weights import INPUT, OUTPUT, vocabulary_matrices
from anisoscope.models.open import open_model
from anisoscope.schedule import at
from anisoscope.studies.claims.run_view import RunView
from anisoscope.studies.claims.vocabulary_matrix import isotropy
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import train


def test_the_untied_output_matrix_of_the_lab_is_measured(tmp_path: Path) -> None:
    switches = {"tied": False, "layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 2, "steps": 2}
    train(changed(Experiment(), switches), tmp_path / "lab", checkpoints=at(2))
    opened = open_model(tmp_path / "lab" / "checkpoints" / "step-2", head=True)
    matrices = vocabulary_matrices(opened.model)
    assert set(matrices) == {INPUT, OUTPUT}
    model: Any = opened.model
    assert torch.equal(matrices[OUTPUT], model.head.weight)
    run = measure(opened, weights=True, metrics=["partition_isotropy", "mean_cosine"], errors=False)
    w = matrices[OUTPUT].double()
    axes = torch.linalg.eigh(w.T @ w).eigenvectors
    z = (w @ (axes * torch.sign(w.mean(0) @ axes))).exp().sum(0)
    assert abs(isotropy(RunView.of(run.records())) - float(z.min() / z.max())) < 1e-5


def test_a_tied_matrix_is_measured_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.tokens.weight

    assert set(vocabulary_matrices(Tied())) == {INPUT}
    untied = Tied()
    untied.head = nn.Linear(8, 50)
    assert torch.equal(vocabulary_matrices(untied)[OUTPUT], untied.head.weight)
