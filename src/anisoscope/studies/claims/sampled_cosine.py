"""Evidence for N4: the mean cosine by the released sampler, by a correct one, and exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anisoscope.studies.claims.claim import MODEL, SIMULATION, Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.hidden_states import mean_cosine
from anisoscope.studies.claims.run_view import estimate_record
from anisoscope.studies.claims.subjects import Subjects

_ROWS, _WIDTH, _SHIFT = 2000, 64, 1.0  # synthetic rows: the mean is as long as the spread, so the cosine is one half
_PAIRS = 1000  # that a correct sampler draws


def released_cosine(cosine: float, drawn: int, rows: int) -> float:
    """Return what the released sampler expects for rows of this mean cosine: it divides by the count of all rows.

    It computes (‖Σu‖² − N)/(N(N − 1)) with the sum over n drawn rows and N the number of all rows; the expectation of
    ‖Σu‖² is n + n(n − 1)·c.

    >>> f"{released_cosine(0.75011, 10_000, 128_000):.6f}", f"{released_cosine(0.75011, 10, 128_000):.1e}"
    ('0.004571', '-7.8e-06')
    """
    return (drawn + drawn * (drawn - 1) * cosine - rows) / (rows * (rows - 1))


def released_sample(rows: Tensor, draw: torch.Generator) -> float:
    """Return the mean cosine as the released sampler computes it from a tenth of the rows."""
    n, total = max(2, len(rows) // 10), len(rows)
    u = nn.functional.normalize(rows[torch.randperm(total, generator=draw)[:n]].double(), dim=1)
    return float((u.sum(0).square().sum() - total) / (total * (total - 1)))


def correct_sample(rows: Tensor, draw: torch.Generator) -> tuple[float, float]:
    """Return the mean cosine of drawn pairs of different rows, and its standard error."""
    i = torch.randint(len(rows), (_PAIRS,), generator=draw)
    j = (i + torch.randint(1, len(rows), (_PAIRS,), generator=draw)) % len(rows)
    values = nn.functional.cosine_similarity(rows[i].double(), rows[j].double())
    return float(values.mean()), float(values.std() / math.sqrt(_PAIRS))


def _sampling(clouds: Sequence[Tensor], ran: str, scale: str) -> Evidence:
    exact, wrong, right, far = [], [], [], []
    for seed, rows in enumerate(clouds):
        draw = torch.Generator().manual_seed(seed)
        value, error = correct_sample(rows, draw)
        exact.append(mean_cosine(rows))
        wrong.append(released_sample(rows, draw))
        right.append(value)
        far.append(abs(value - exact[-1]) / error)
    quantities = {
        "wrong": Estimate.over([abs(a - b) for a, b in zip(wrong, exact, strict=True)], "draws"),
        "correct": Estimate.over(far, "draws"),
    }
    named = (("exact", exact), ("sampled, as released", wrong), ("sampled, correct", right))
    records = [estimate_record(Estimate.over(values, "draws"), "mean_cosine", of=of) for of, values in named]
    return Evidence(ran, scale, quantities, records=tuple(records))


def sampled_rows(subjects: Subjects) -> Evidence:
    """Gather both samples of synthetic rows (N4)."""
    clouds = []
    for seed in range(subjects.size.draws):
        draw = torch.Generator().manual_seed(seed)
        shift = nn.functional.normalize(torch.randn(_WIDTH, generator=draw), dim=0) * _SHIFT * math.sqrt(_WIDTH)
        clouds.append(torch.randn(_ROWS, _WIDTH, generator=draw) + shift)
    return _sampling(clouds, f"{len(clouds)} sets of Gaussian rows whose mean is as long as their spread", SIMULATION)


def sampled_matrix(subjects: Subjects) -> Evidence:
    """Gather both samples of the output embeddings of a model of the user (N4)."""
    model, draws = subjects.given_models[0], subjects.size.draws
    return _sampling([model.output_matrix()] * draws, f"output embeddings of {model.name}, {draws} draws", MODEL)
