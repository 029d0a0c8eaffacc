"""How evenly rows fill the directions of their space: cosine, drift, share of variance, partition function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from anisoscope.metrics.metric import Series, Undefined, Value, metric
from anisoscope.metrics.spectra import top_share_of, variance_of
from anisoscope.stats.derived import AcrossDocuments, Groups
from anisoscope.stats.directions import CentredDirections, Directions, UnitSquares
from anisoscope.stats.moments import Moments
from anisoscope.stats.partition import Partition

ZETA = 0.2  # shrinkage of IsoScore*, as published; the tangent test uses it for gradients too
_INF = math.inf
_Number = TypeVar("_Number", float, Tensor)
_FEWEST_PAIRED = 8  # blocks that pairs of blocks need to show how they vary
_ROWS_PER_DIMENSION = 10  # with fewer, a sample covariance is visibly flatter than that of the population


@metric(
    Directions, low=-1, high=1, keeps={"rotation", "scale", "row-scale"}, paper="ethayarajh2019",
    knows={"sphere": (0, 0.01), "one direction": 1, "cone": (0.8, 0.02)}, null=lambda iso, _: 0.0,
    isotropic="zero", row_effect="none",
)  # fmt: skip
def mean_cosine(directions: Directions) -> Value:
    """Average cosine between two different rows, over all pairs.

    (‖Σu‖² − n)/(n(n − 1)) with u = x/‖x‖: exact, in one pass. A large mean row makes it large; compare with
    `mean_cosine_centred`. Rows of norm zero have no direction. They are left out, and the note counts them.

    Two equal rows give 1, two opposite rows −1.
    """
    return _cosine(directions.unit, directions.directed, int(directions.zero))


@metric(
    CentredDirections, low=-1, high=1, keeps={"rotation", "scale", "shift"}, paper="ethayarajh2019",
    knows={"sphere": (0, 0.01), "cone": (0, 0.02)}, null=lambda _, v: -1 / ((v.n or 2) - 1),
    isotropic="zero", row_effect="null",
)  # fmt: skip
def mean_cosine_centred(directions: CentredDirections) -> Value:
    """Average cosine between two different rows after the mean row is subtracted.

    The formula of `mean_cosine` on x − mean. The mean must be known first: rows of a file are read twice, rows of a
    model come from the keyed sample.
    """
    return _cosine(directions.unit, directions.directed, int(directions.zero))


@metric(
    AcrossDocuments, low=-1, high=1, keeps={"rotation", "scale", "row-scale"}, paper="anisoscope",
    requires={"documents"}, null=lambda iso, _: 0.0,
    isotropic="zero", row_effect="none",
)  # fmt: skip
def mean_cosine_across_documents(across: AcrossDocuments) -> Value:
    """Average cosine between two rows of different documents.

    (‖Σu‖² − Σ_b ‖Σ_{i∈b} u‖²)/(n² − Σ n_b²) with b the documents: what rows have in common although their texts do not.
    Exact over all rows. If tokens were left out (`no-sink`), it is computed on the keyed sample.
    """
    n = int(across.rows.sum())
    pairs = n**2 - float(across.square.sum())
    if pairs <= 0:
        raise Undefined("all rows are of one document", "give at least two documents")
    total = float(across.unit.sum(0).square().sum())
    cosine = _bounded((total - float(across.unit_square.sum())) / pairs)
    note = "from the keyed sample" if across.sampled else None
    products = across.unit @ across.unit.T - cosine * torch.outer(across.rows, across.rows)
    return Value(cosine, n=n, note=note, stretch=_stretch_of_pairs(products))


@metric(
    Directions, low=0, high=_INF, keeps={"rotation"}, paper="godey2024",
    knows={"sphere": (0, 0.3), "one direction": 2},
    isotropic="low",
)  # fmt: skip
def drift_norm(directions: Directions) -> float:
    """Length of the mean row.

    ‖Σx‖/n. To explain the mean cosine, correlate it with this, not with ‖Σu‖/n, which determines it by definition.
    """
    return float(directions.total.norm()) / directions.n


@metric(
    Directions, low=0, high=1, keeps={"rotation", "scale"}, paper="godey2024",
    knows={"one direction": (0.894, 0.001), "sphere": (0, 0.05)}, null=lambda iso, _: 1 / math.sqrt(iso.rows),
    isotropic="low", row_effect="null",
)  # fmt: skip
def relative_drift(directions: Directions) -> float:
    """Length of the mean row divided by the root mean square length of the rows.

    ‖mean x‖/√(mean ‖x‖²): 0 for centred rows, 1 if all rows are equal.
    """
    square = float(directions.norm_square) / directions.n
    if square == 0:
        raise Undefined("all rows are zero", "check the captured site")
    return min(1.0, float(directions.total.norm()) / directions.n / math.sqrt(square))


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="razzhigaev2023",
    knows={"line": 1, "sphere": (1 / 16, 0.01), "outlier dimension": (0.862, 0.02)}, null=lambda iso, _: iso.top_share,
    isotropic="low", row_effect="null",
)  # fmt: skip
def spectral_anisotropy(moments: Moments) -> float:
    """Share of the variance that the top direction carries.

    λ1/Σλ = σ1²/Σσ² of the centred rows: 1/d for a sphere, 1 for a line. σ = (10, 2, 1) gives 0.952.
    """
    return top_share_of(moments.eigenvalues)


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale"}, paper="razzhigaev2023",
    knows={"one direction": 1, "sphere": (1 / 16, 0.01)}, null=lambda iso, _: iso.top_share,
    isotropic="low", row_effect="null",
)  # fmt: skip
def spectral_anisotropy_uncentred(moments: Moments) -> float:
    """Share of the squared length that the top direction carries, without subtracting the mean.

    σ1²/Σσ² of the uncentred rows: a large mean alone makes it large.
    """
    return top_share_of(moments.eigenvalues_uncentred)


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale"}, paper="razzhigaev2023",
    knows={"one direction": (1, 1e-6), "sphere": (1 / 16, 0.005)},
    null=lambda iso, _: float(iso.eigenvalues[0].sqrt() / iso.eigenvalues.sqrt().sum()),
    isotropic="low", null_rows=4,
)  # fmt: skip
def singular_anisotropy(moments: Moments) -> float:
    """Share of the top singular value in the sum of singular values, uncentred.

    σ1/Σσ, as the text of the paper defines it. The authors' code squares the singular values and centres the rows,
    which is `spectral_anisotropy`. σ = (10, 2, 1) gives 0.769.
    """
    return top_share_of(moments.eigenvalues_uncentred.sqrt())


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale", "shift"}, paper="rudman2022",
    knows={"line": 1, "sphere": (16, 0.2), "plane": (3, 0.05)}, null=lambda iso, _: iso.participation_ratio,
    isotropic="high", row_effect="null",
)  # fmt: skip
def participation_ratio(moments: Moments) -> Value:
    """Number of directions that share the variance.

    (Σλ)²/Σλ² = (tr C)²/‖C‖²: d for a sphere, 1 for a line. n rows of a sphere give about 1/(1/d + 1/n);
    `participation_ratio_unbiased` does not have this bias.
    """
    return Value(participation_ratio_of(moments), note=_biased(moments))


@metric(
    Groups, low=-_INF, high=_INF, keeps={"rotation", "scale", "shift"}, paper="anisoscope",
    knows={"sphere": (16, 0.3), "plane": (3, 0.05)}, null=None,
    isotropic="high", row_effect="none",
)  # fmt: skip
def participation_ratio_unbiased(groups: Groups) -> Value:
    """Participation ratio from pairs of different blocks of documents, without finite-sample bias.

    [(Σt)² − Σt_b²]/[‖ΣS‖² − Σ‖S_b‖²] with S_b the scatter of block b about the common mean and t_b its trace. A sphere
    gives d on average, for any number of rows. Single values may exceed d.
    """
    blocks = len(groups.trace)
    if blocks < 2:
        raise Undefined("all rows are in one block of documents", "give at least two documents")
    squares = groups.overlap.sum() - groups.overlap.diagonal().sum()
    if squares <= 0:
        raise Undefined("different blocks share no direction of variance", "give more rows")
    ratio = float((groups.trace.sum() ** 2 - groups.trace.square().sum()) / squares)
    pairs = torch.outer(groups.trace, groups.trace) - ratio * groups.overlap  # (B, B), sums to 0 off the diagonal
    return Value(ratio, stretch=_stretch_of_pairs(pairs))


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="rudman2022",
    knows={"sphere": (1, 0.01), "line": 0}, null=lambda iso, _: iso.isoscore,
    isotropic="high", row_effect="null",
)  # fmt: skip
def isoscore(moments: Moments) -> Value:
    """Evenness of the variance over directions: 1 for a sphere, 0 for a line.

    (PR − 1)/(d − 1) with PR the participation ratio. It equals the published score.
    """
    return Value(isoscore_of(participation_ratio_of(moments), moments.dim), note=_biased(moments))


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="rudman2024",
    knows={"sphere": (1, 0.01), "line": (1 / (0.64 + 0.36 / 16) - 1) / 15},
    null=lambda iso, _: isoscore_of(iso.participation_ratio, iso.dim, ZETA),
    isotropic="high", row_effect="null",
)  # fmt: skip
def isoscore_star(moments: Moments) -> Value:
    """IsoScore of the covariance after shrinking it towards a sphere of the same trace.

    IsoScore of (1 − ζ)C + ζ·(tr C/d)·I with ζ = 0.2: stable with fewer rows than dimensions.
    """
    return Value(isoscore_of(participation_ratio_of(moments), moments.dim, ZETA), variant={"zeta": ZETA})


@metric(
    Partition, low=0, high=1, keeps={"rotation"}, paper="mu2018", knows={"sphere": (0.9, 0.1)},
    isotropic="high", headline={"rows": "unit-rms", "signs": "both"},
)  # fmt: skip
def partition_isotropy(partition: Partition) -> Iterator[Value]:
    """Smallest value of the partition function divided by the largest, over the principal axes: 1 is isotropic.

    min Z(v)/max Z(v) with Z(v) = Σ exp(x·v), v the eigenvectors of XᵀX. Their sign is arbitrary: `signs=both` uses v
    and −v, `signs=mean` the sign towards the mean. The value depends on scale (`rows=raw`); `rows=unit-rms` rescales
    the rows first, so that models of different width can be compared. Light-tailed rows with mean m give about
    exp(−‖m‖) (`mean`) or exp(−2‖m‖) (`both`).
    """
    for scale, rows in enumerate(("raw", "unit-rms")):
        both = partition.log_z[scale]  # (2, d)
        for signs, chosen in (("both", both), ("mean", both[0])):
            ratio = float((chosen.min() - chosen.max()).exp())
            yield Value(ratio, variant={"rows": rows, "signs": signs})


@metric(
    Directions, UnitSquares, low=-1, high=1, keeps={"scale", "row-scale"}, paper="timkey2021", top=8,
    notable="high", row_effect="none",
)  # fmt: skip
def cosine_contribution(directions: Directions, squares: UnitSquares) -> Series:
    """Contribution of each dimension to the mean cosine; index is the dimension.

    ((Σu_i)² − Σu_i²)/(n(n − 1)). All contributions add up to `mean_cosine`. A run records the 8 largest.
    """
    n = directions.directed
    if n < 2:
        raise Undefined(f"{n} rows have a direction", "give at least two rows that are not zero")
    return Series((directions.unit.square() - squares.square) / (n * (n - 1)), n=n)


def _cosine(unit: Tensor, n: int, zero: int) -> Value:
    if n < 2:
        raise Undefined(f"{n} rows have a direction", "give at least two rows that are not zero")
    note = f"{zero} rows of norm zero left out" if zero else None
    return Value(_bounded((float(unit @ unit) - n) / (n * (n - 1))), n=n, note=note)


def _bounded(cosine: float) -> float:
    """Limit a mean cosine to [−1, 1]: rounding of float32 directions can exceed 1 by 1e-7."""
    return max(-1.0, min(1.0, cosine))


def _stretch_of_pairs(pairs: Tensor) -> float:
    """Return the factor for a jackknife over B blocks of a mean over pairs of blocks, from their terms (B, B).

    With g the terms of pairs (they sum to 0) and R_a their sum over a row, the jackknife variance is j·Σ R_a². It is
    right if single blocks differ (g_ab = v_a + v_b), and 2.4 times too large without structure, when only pairs differ.
    One combination a·Σ R_a² − b·Σ g_ab² is right in both cases. Both sums are estimates, so the factor is at least that
    of no structure.
    """
    n = len(pairs)
    off = pairs - torch.diag(pairs.diagonal())
    rows, squares = float(off.sum(1).square().sum()), float(off.square().sum())
    if n < _FEWEST_PAIRED or rows <= 0:
        return 1.0
    j = 4 / (n * (n - 1) * (n - 2) ** 2)
    a = 4 / n * (1 - (n - 2) / (n * (n - 1))) / ((n - 1) * (n - 2) * (n - 4))
    least = 2 / (n * (n - 1)) ** 2
    b = a - least
    return math.sqrt(max(least, a - b * squares / rows) / j)


def participation_ratio_of(moments: Moments) -> float:
    """Return (tr C)²/‖C‖² of the covariance C."""
    return float(variance_of(moments) ** 2 / moments.scatter.square().sum())


def _biased(moments: Moments) -> str | None:
    if moments.n >= _ROWS_PER_DIMENSION * moments.dim:
        return None
    return "biased low because of few rows: compare it with its null, or use participation_ratio_unbiased"


def isoscore_of(ratio: _Number, dim: int, zeta: float = 0.0) -> _Number:
    """Return IsoScore from a participation ratio, or IsoScore* if `zeta` > 0.

    IsoScore is (PR − 1)/(d − 1). IsoScore* takes the participation ratio of (1 − ζ)C + ζ·(tr C/d)·I, which follows from
    that of C without eigenvalues: 1/PR* = (1 − ζ)²/PR + (1 − (1 − ζ)²)/d.

    Args:
        ratio: Participation ratio of C, a number or a tensor (differentiable).
        dim: Number of dimensions d.
        zeta: Shrinkage ζ towards a sphere. The metric `isoscore_star` uses `ZETA`.

    >>> isoscore_of(16.0, 16), round(isoscore_of(1.0, 16, 0.2), 4)
    (1.0, 0.034)
    """
    if dim < 2:
        raise Undefined("the rows have one dimension", "evenness needs at least two")
    if zeta:
        keep = (1 - zeta) ** 2
        ratio = 1 / (keep / ratio + (1 - keep) / dim)
    return (ratio - 1) / (dim - 1)
