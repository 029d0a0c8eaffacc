"""Records of the similarity of two models, and the descriptions of their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anisoscope.records import Record, Site
from anisoscope.stats.inference import jackknife
from anisoscope.stats.layer_permutations import PermutationTest
from anisoscope.stats.layer_similarity import NEIGHBOURS, PairTable, copied_layers, flat_layers

FEWEST_BLOCKS = 4  # for an error bar
# Rows of different blocks share neighbours, so leaving out queries alone gives errors that are too small, by these
# factors on average for Gaussian rows (200 to 400 rows, 5 to 20 dimensions, unrelated to closely related).
STRETCH = {"cka": 1.0, "overlap": 1.4, "a_to_b": 1.3, "b_to_a": 1.3}
_CARDS: tuple[tuple[str, str, str, float, float, str], ...] = (
    (
        "layer_cka",
        "Similarity (CKA) of a layer with a layer of another model on the same texts: 1 if rotated, 0 if unrelated.",
        "Linear and debiased: HSIC(K, L)/√(HSIC(K, K)·HSIC(L, L)) with the unbiased HSIC, so unrelated rows give 0 on "
        "average even if there are fewer rows than dimensions. The error is a jackknife over blocks of documents.",
        -1,
        1,
        "kornblith2019",
    ),
    (
        "layer_overlap",
        f"Average share of a text's {NEIGHBOURS} nearest texts that are also nearest in a layer of another model.",
        f"Euclidean distance, k = {NEIGHBOURS}. Unrelated rows give k/(m − 1). The error leaves blocks of documents "
        "out as queries, and is stretched by 1.4 because rows share neighbours.",
        0,
        1,
        "huh2024",
    ),
    (
        "layer_imbalance",
        "How badly one layer predicts nearest texts in the layer of another model: 2/m if perfectly, 1 if unrelated.",
        "Information imbalance Δ(A → B) = 2/m · mean rank in B of the nearest row in A, by Euclidean distance. If "
        "Δ(A → B) is below Δ(B → A), A predicts B better than B predicts A. The error "
        "leaves blocks of documents out as queries, and is stretched by 1.3 because rows share neighbours.",
        0,
        2,
        "glielmo2022",
    ),
    (
        "similarity_p",
        "Probability of this much similarity in any pair of layers if the two models were unrelated.",
        "The rows of one model are permuted, in the same way for all pairs of layers. With z = (value − mean)/spread "
        "over all orders: p = (1 + permutations whose largest z reaches z)/(1 + permutations).",
        0,
        1,
        "westfall1993",
    ),
)
# measure -> metric, what its variant has besides the other layer
_METRICS: dict[str, tuple[str, dict[str, str]]] = {
    "cka": ("layer_cka", {}),
    "overlap": ("layer_overlap", {}),
    "a_to_b": ("layer_imbalance", {"direction": "a to b"}),
    "b_to_a": ("layer_imbalance", {"direction": "b to a"}),
}


@dataclass(frozen=True)
class ComparedRows:
    """The aligned rows of two models.

    Attributes:
        sites: The sites of the first model, and of the second.
        rows: The rows (m, d) of each site of the first model, and of the second.
        document: (m,) the document of each row.
        unit: What a document is: "documents" or "windows".
        tokens: The token policy.
        independent: Whether no two rows are from one document.
    """

    sites: tuple[Sequence[Site], Sequence[Site]]
    rows: tuple[Sequence[Tensor], Sequence[Tensor]]
    document: Tensor
    unit: str
    tokens: str
    independent: bool


def similarity_cards() -> dict[str, dict[str, Any]]:
    """Return the descriptions of the metrics by name, in the form of `Metric.card`."""
    return {
        name: {
            "name": name,
            "family": "similarity",
            "meaning": meaning,
            "text": f"{meaning}\n\n{text}",
            "low": low,
            "high": high,
            "ignores": ["permutation", "rotation", "scale", "shift"],
            "needs": ["rows of two models"],
            "paper": paper,
            "version": 1,
        }
        for name, meaning, text, low, high, paper in _CARDS
    }


def similarity_records(
    compared: ComparedRows, tables: Mapping[str, PairTable], sizes: Sequence[int]
) -> Iterator[Record]:
    """Yield a record of every measure and pair of layers; the site is the first model's layer, `other` the second's."""
    m = len(compared.document)
    # Rows of one document are alike in every model, so this value does not hold for several rows per document.
    nulls = {"cka": 0.0, "overlap": NEIGHBOURS / (m - 1), "a_to_b": 1.0, "b_to_a": 1.0}
    for name, table in tables.items():
        notes = _notes(compared, name)
        metric, more = _METRICS[name]
        for i, site in enumerate(compared.sites[0]):
            for j, other in enumerate(compared.sites[1]):
                value = float(table.value[i, j])
                known = math.isfinite(value)
                error = similarity_error(name, value, table.without[:, i, j].tolist(), sizes) if known else None
                yield Record(
                    str(site),
                    metric,
                    value if known else None,
                    tokens=compared.tokens,
                    variant={"other": str(other), **more},
                    error=error,
                    error_kind=None if error is None else f"jackknife-{len(sizes)}-{compared.unit}",
                    null=nulls[name] if compared.independent else None,
                    n=m,
                    note=None if known else notes[0][i] or notes[1][j] or "it is not determined",
                )


def p_records(compared: ComparedRows, tests: Mapping[str, PermutationTest], n: int) -> Iterator[Record]:
    """Yield the p-value of every measure and pair of layers that has one; `n` is the number of permuted rows."""
    for name, test in tests.items():
        metric, more = _METRICS[name]
        for i, site in enumerate(compared.sites[0]):
            for j, other in enumerate(compared.sites[1]):
                if math.isfinite(float(test.p[i, j])):
                    yield Record(
                        str(site),
                        "similarity_p",
                        float(test.p[i, j]),
                        tokens=compared.tokens,
                        variant={"other": str(other), "of": metric, **more},
                        n=n,
                    )


def similarity_error(name: str, value: float, replicates: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Return the standard error of a measure from its values without each block; None for too few blocks."""
    if len(sizes) < FEWEST_BLOCKS or not all(map(math.isfinite, replicates)):
        return None
    return STRETCH[name] * jackknife(value, replicates, sizes)


def _notes(compared: ComparedRows, name: str) -> list[list[str | None]]:
    """Return for each model and site why it has no value."""
    reasons = flat_layers if name == "cka" else copied_layers
    return [
        [reason and f"{site} of model {label}: {reason}" for site, reason in zip(sites, reasons(rows), strict=True)]
        for label, sites, rows in zip("ab", compared.sites, compared.rows, strict=True)
    ]
