"""Sequences one by one: how their rows turn from token to token, and how many directions each of them fills."""

from __future__ import annotations

import math

import torch

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.metrics.nulls import Isotropic
from anisoscope.stats.moments import Moments
from anisoscope.stats.sequence_spectra import SequenceSpectra
from anisoscope.stats.token_steps import TokenSteps

_INDEPENDENT = 120.0  # degrees: successive steps between independent rows share one row, so their cosine is −1/2


@metric(
    TokenSteps, low=0, high=180, keeps={"rotation", "scale", "shift"}, paper="hosseini2023", requires={"documents"},
    knows={"sphere": (120, 2)}, row_effect="none",
)  # fmt: skip
def trajectory_curvature(steps: TokenSteps) -> Value:
    """Average angle in degrees between successive steps from token to token within a sequence.

    0 on a straight line, 90 for a random walk, 120 (the null) for independent rows. Windows of a document are separate
    sequences. Steps of length zero do not count.
    """
    n = int(steps.angles)
    if not n:
        raise Undefined("no sequence has three different rows in a row", "give rows of documents in their order")
    return Value(math.degrees(float(steps.total) / n), n=n, null=_INDEPENDENT)


@metric(
    SequenceSpectra, Moments, low=0, high=1, keeps={"rotation", "scale"}, paper="skean2025", requires={"documents"},
    slow=True, notable="low",
)  # fmt: skip
def matrix_entropy(spectra: SequenceSpectra, moments: Moments) -> Value:
    """Average entropy of the spectrum of a sequence, relative to the largest possible.

    The von Neumann entropy of each sequence's Gram matrix XXᵀ/tr XXᵀ (not centred), divided by ln min(T, d): 0 if all
    rows of a sequence point the same way, 1 if they fill all directions evenly. The null is that of independent
    isotropic rows in sequences of the same lengths. It takes the eigenvalues of a matrix per sequence.
    """
    whole = spectra.complete
    n = int(whole.lengths.sum())
    if not n:
        raise Undefined("no sequence has two rows that are not zero", "give rows of documents in their order")
    lengths = whole.lengths.nonzero()[:, 0].tolist()
    null = sum(int(whole.lengths[length]) * _isotropic_entropy(moments.dim, length) for length in lengths) / n
    return Value(min(1.0, max(0.0, float(whole.entropy) / n)), n=n, null=null)


def _isotropic_entropy(dim: int, rows: int) -> float:
    """Return the entropy that independent isotropic rows give, relative to the largest possible."""
    most = min(dim, rows)
    if most < 2:
        return 0.0
    p = Isotropic(dim, rows).eigenvalues
    return float(-torch.xlogy(p, p).sum()) / math.log(most)
