"""Descriptions of the numbers that need more than one cloud: queries, labels, all rows or another map."""

from __future__ import annotations

from typing import Any

# name, meaning, text, low, high, paper
_CARDS: tuple[tuple[str, str, str, float | None, float | None, str], ...] = (
    (
        "exact_duplicates",
        "Number of rows that are equal to an earlier row.",
        "All rows are compared. Rows are equal if all their numbers are.",
        0,
        None,
        "anisoscope",
    ),
    (
        "near_duplicates",
        "Share of rows that have another row at less than a tenth of the usual distance.",
        "The usual distance is the root mean square distance between two rows of length 1, so a common direction of "
        "all rows does not count. Exact duplicates are left out. n is the number of rows that were compared with all.",
        0,
        1,
        "anisoscope",
    ),
    (
        "norm_spread",
        "Standard deviation of the lengths of the rows divided by their mean: 0 if all have the same length.",
        "σ(‖x‖)/mean ‖x‖ over all rows. If it is not 0, dot product and cosine rank results differently.",
        0,
        None,
        "anisoscope",
    ),
    (
        "zero_directions",
        "Number of directions in which the rows do not vary: the width minus the rank.",
        "Directions with less than 10⁻¹² of the largest variance. They store nothing. The null is what too few rows "
        "leave: max(0, d − n + 1).",
        0,
        None,
        "anisoscope",
    ),
    (
        "kept_neighbours",
        "Average share of a row's ten nearest rows that are also its ten nearest before the map.",
        "By cosine, among the rows of the sample. The null for unrelated rows is k/(n − 1). It shows how much a map "
        "changes search, not whether search becomes better.",
        0,
        1,
        "anisoscope",
    ),
    (
        "nearest_cosine",
        "Average cosine of a row with its nearest other row.",
        "Compare with the mean cosine of random pairs.",
        -1,
        1,
        "anisoscope",
    ),
    (
        "separation",
        "How far the cosines of matching pairs are above those of random pairs, in standard deviations.",
        "(μ − μ₀)/√((σ² + σ₀²)/2). Matching pairs are relevant pairs if they are known (`pairs=relevant`), else rows "
        "with their nearest row (`pairs=nearest`).",
        None,
        None,
        "anisoscope",
    ),
    (
        "alignment",
        "Average squared distance between a query and its relevant rows, at length 1: 0 if they coincide, at most 4.",
        "E‖u − v‖² over relevant pairs (α = 2, as published). Small is good if the uniformity stays low: both are "
        "needed.",
        0,
        4,
        "wang2020",
    ),
    (
        "recall",
        "Share of the relevant rows of a query among its first k results; index is k.",
        "Mean over queries; the results are exact. The error is a jackknife over queries.",
        0,
        1,
        "manning2008",
    ),
    (
        "mrr",
        "Average of one over the rank of the first relevant row, 0 beyond rank 10; index is 10.",
        "Mean reciprocal rank. The error is a jackknife over queries.",
        0,
        1,
        "manning2008",
    ),
    (
        "ndcg",
        "Discounted gain of the first ten results, divided by that of the best possible order; index is 10.",
        "Σ grade/log₂(1 + rank), the grades as given (1 if there are none). The error is a jackknife over queries.",
        0,
        1,
        "jarvelin2002",
    ),
    (
        "knn_accuracy",
        "Share of rows whose label is that of most of their ten nearest rows.",
        "Among the rows of the sample; ties go to the nearest. The null is always answering the most frequent label.",
        0,
        1,
        "cover1967",
    ),
    (
        "silhouette",
        "How much nearer rows are to their own group than to the nearest other group: −1 to 1.",
        "Mean of (b − a)/max(a, b), with a and b the mean distances to the own and the nearest other group; from at "
        "most 2,048 rows.",
        -1,
        1,
        "rousseeuw1987",
    ),
    (
        "between_share",
        "Share of the variance that lies between the groups.",
        "tr(between)/tr(total) of the rows of the sample. The null for random labels is (groups − 1)/(n − 1).",
        0,
        1,
        "anisoscope",
    ),
    (
        "change",
        "A number after a map minus the same number before, with a paired error; `of` names the number.",
        "Both use the same rows, queries and blocks, so what they have in common cancels in the error.",
        None,
        None,
        "anisoscope",
    ),
)
_HIGH_IS_FINDING = {"exact_duplicates", "near_duplicates", "zero_directions"}


def quality_cards() -> dict[str, dict[str, Any]]:
    """Return the descriptions by name, in the form of `Metric.card`."""
    return {
        name: {
            "name": name,
            "family": "embedding",
            "meaning": meaning,
            "text": f"{meaning}\n\n{text}",
            "low": low,
            "high": high,
            "ignores": [],
            "needs": ["embeddings"],
            "paper": paper,
            "version": 1,
            "notable": "high" if name in _HIGH_IS_FINDING else None,
            "row_effect": "any",
            "headline": {},
        }
        for name, meaning, text, low, high, paper in _CARDS
    }
