"""Claims × models: which published statements that need only a model hold on the measured profiles.

Each rule is a pure function of the stored evidence of one model. A difference counts if it exceeds two error bars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anisoscope.studies.atlas.evidence import ModelEvidence, Point

HOLDS, FAILS, OPEN = "holds", "fails", "–"  # OPEN: the claim is not about this kind of model, or a number is missing
FLAT = 0.1  # range of the top direction's share below which a profile is called flat
LOW = 60  # the published bound of the intrinsic dimension
HIGH = 0.2  # mean cosine above which a layer counts as anisotropic
_ERRORS = 2


@dataclass(frozen=True)
class MatrixVerdict:
    """What became of a claim on one model: `holds`, `fails` or `–`, and the numbers in words."""

    answer: str
    text: str


@dataclass(frozen=True)
class MatrixRow:
    """One line of the matrix: a claim, in words, and its rule."""

    id: str
    statement: str
    rule: Callable[[ModelEvidence], MatrixVerdict]


def bell_or_flat(model: ModelEvidence, tokens: str) -> MatrixVerdict:
    """Judge S1: a decoder's profile is highest inside and falls to both ends, an encoder's is flat."""
    points = model.points("spectral_anisotropy", tokens)
    if len(points) < 4 or model.kind not in ("decoder", "encoder"):
        return MatrixVerdict(OPEN, "too few layers, or neither a decoder nor an encoder")
    values = [point[1] for point in points]
    if model.kind == "encoder":
        span = max(values) - min(values)
        return MatrixVerdict(HOLDS if span < FLAT else FAILS, f"range {span:.2f} over the layers")
    top = int(np.argmax(values))
    inside = 0 < top < len(points) - 1
    bell = inside and all(_exceeds(points[top], points[end]) for end in (0, -1))
    text = f"{values[0]:.2f} first, {values[top]:.2f} at layer {top} of {len(points) - 1}, {values[-1]:.2f} last"
    return MatrixVerdict(HOLDS if bell else FAILS, text)


def low_dimension(model: ModelEvidence) -> MatrixVerdict:
    """Judge S3: the intrinsic dimension stays below 60 in every layer."""
    points = model.points("two_nn", "no-sink")
    if not points:
        return MatrixVerdict(OPEN, "no intrinsic dimension")
    top = max(points, key=lambda point: point[1])
    below = top[1] + _ERRORS * (top[2] or 0) < LOW
    return MatrixVerdict(HOLDS if below else FAILS, f"at most {top[1]:.1f}")


def high_cosine(model: ModelEvidence) -> MatrixVerdict:
    """Judge A1: the mean cosine is high in most layers of a transformer, and less so in a convolutional network."""
    points = [point for point in model.points("mean_cosine") if point[0].rpartition(".")[0].endswith("resid")]
    if not points:
        return MatrixVerdict(OPEN, "no mean cosine")
    share = sum(point[1] > HIGH for point in points) / len(points)
    most = share > 0.5
    good = not most if model.kind == "convolutional" else most
    return MatrixVerdict(HOLDS if good else FAILS, f"{share:.0%} of the layers above {HIGH}")


def drift_explains(model: ModelEvidence) -> MatrixVerdict:
    """Judge A2: the norm of the mean and the mean cosine rise and fall together over the layers."""
    cosine, drift = model.points("mean_cosine"), model.points("drift_norm")
    if len(cosine) < 5 or len(cosine) != len(drift):
        return MatrixVerdict(OPEN, "too few layers")
    rank = _spearman([p[1] for p in cosine], [p[1] for p in drift])
    return MatrixVerdict(HOLDS if rank > 0.5 else FAILS, f"rank correlation {rank:.2f} over {len(cosine)} sites")


def few_tokens(model: ModelEvidence) -> MatrixVerdict:
    """Judge whether a few tokens make the peak: without them the highest share falls to less than half."""
    both = [model.points("spectral_anisotropy", tokens) for tokens in ("all", "no-sink")]
    if not all(both):
        return MatrixVerdict(OPEN, "one token policy is missing")
    before, after = (max(point[1] for point in points) for points in both)
    return MatrixVerdict(
        HOLDS if after < before / 2 else FAILS, f"{before:.2f} with all tokens, {after:.2f} without sinks"
    )


MATRIX = (
    MatrixRow(
        "S1, all tokens",
        "Decoders have a bell of anisotropy over layers; encoders are flat.",
        lambda model: bell_or_flat(model, "all"),
    ),
    MatrixRow(
        "S1, no-sink",
        "The same without first tokens of windows and massive tokens.",
        lambda model: bell_or_flat(model, "no-sink"),
    ),
    MatrixRow("S3", f"Intrinsic dimension is never above {LOW}.", low_dimension),
    MatrixRow("A1", "Mean cosine is high in most layers; less so in convolutional networks.", high_cosine),
    MatrixRow("A2", "The norm of the mean explains the mean cosine over layers.", drift_explains),
    MatrixRow("few tokens", "A few tokens make more than half of the highest anisotropy.", few_tokens),
)


def matrix(models: Sequence[ModelEvidence]) -> list[tuple[MatrixRow, list[MatrixVerdict]]]:
    """Return every claim with its verdict on every model."""
    return [(row, [row.rule(model) for model in models]) for row in MATRIX]


def _exceeds(high: Point, low: Point) -> bool:
    error = ((high[2] or 0) ** 2 + (low[2] or 0) ** 2) ** 0.5
    return high[1] - low[1] > _ERRORS * error


def _spearman(x: Sequence[float], y: Sequence[float]) -> float:
    from anisoscope.stats.inference import spearman

    return float(spearman(x, y))
