"""What a run keeps of the tangent test's measures, so that it renders where this package is not installed."""

from __future__ import annotations

from typing import Any

_MEASURES: tuple[tuple[str, str, str, float | None, float | None], ...] = (
    (
        "gradient_energy",
        "Share of the gradients' squared length inside a basis fitted on activations; index is its rank.",
        "‖GQ‖²/‖G‖². The null is r/d, or the level of the null that the variant names.",
        0,
        1,
    ),
    (
        "gradient_enrichment",
        "Gradient energy inside a basis over that inside a random one of the same rank; index is the rank.",
        "E/(r/d): 1 where the basis knows nothing of the gradients.",
        0,
        None,
    ),
    (
        "gradient_excess",
        "Gradient energy less the level of a null or the energy of a reference; index is the rank.",
        "E − E₀, where both come from the same blocks with a paired error.",
        -1,
        1,
    ),
    (
        "gradient_p",
        "Chance of at least the energy seen under the null that the variant names; index is the rank.",
        "Beta law, or (1 + draws at least as large)/(1 + draws).",
        0,
        1,
    ),
    (
        "gradient_q",
        "False discovery rate at which the p-value would be called; index is the rank.",
        "Benjamini–Hochberg over sites, steps, ranks and proxies, each null a family of its own.",
        0,
        1,
    ),
    (
        "tangent_normal_ratio",
        "Gradient energy inside a basis over that inside random ones orthogonal to it; index is the rank.",
        "E/E_N, 20 draws; E_N is (1 − E)r/(d − r) on average, so it is a transform of the energy: read it beside E.",
        0,
        None,
    ),
    (
        "gradient_ceiling",
        "Energy in the gradients' own leading directions, from other documents; index is their number.",
        "The most that a basis of this rank could capture.",
        0,
        1,
    ),
    (
        "anisotropy_share",
        "How much rounder the gradients become when a basis is taken out; index is its rank.",
        "ΔIsoScore*, projected after shrinking; the null is that of a random normal, or equally energetic, subspace.",
        -1,
        1,
    ),
    (
        "anisotropy_split",
        "Where the squared covariance of gradients sits: inside a basis, across, outside; index is its rank.",
        "tr Σ² = ‖PᵀΣPᵀ‖² + 2‖PᵀΣPᴺ‖² + ‖PᴺΣPᴺ‖², as shares.",
        0,
        1,
    ),
    (
        "transfer_slope",
        "How gradient energy along a principal axis grows with the activations' variance there.",
        "β of log v_jᵀΣv_j on log λ_j: 0 no relation, 1 as the covariance.",
        None,
        None,
    ),
    (
        "gradient_along_axis",
        "Share of the gradients' squared length along one principal axis of the activations; index is the axis.",
        "v_jᵀSv_j/tr S.",
        0,
        1,
    ),
    (
        "variance_along_axis",
        "Share of the activations' variance along a principal axis that other tokens gave; index is the axis.",
        "λ_j/Σλ on the test tokens.",
        0,
        1,
    ),
    (
        "local_excess",
        "Energy of gradients in the basis of their own patch of the cloud, beyond that in other patches' bases.",
        "Mean diagonal of the doubly centred M_jk, times K/(K − 1).",
        -1,
        1,
    ),
    (
        "frequency_distance",
        "Correlation of a token type's log frequency with the distance of its centroid to the mean.",
        "Pearson and Spearman, as published; split_half is the control that is free of σ²/n.",
        -1,
        1,
    ),
    (
        "displacement_energy",
        "Share of the change of the same tokens' activations since an earlier step inside a basis; index is its rank.",
        "‖ΔH Q‖²/‖ΔH‖²; the null is r/d.",
        0,
        1,
    ),
    (
        "concept_rank",
        "Effective rank of the concepts of semi-NMF; index is their number.",
        "exp of the entropy of the used concepts' singular values.",
        1,
        None,
    ),
    (
        "concept_error",
        "What semi-NMF leaves of the activations; index is the number of concepts.",
        "‖X − ZD‖/‖X‖.",
        0,
        1,
    ),
)


def tangent_cards() -> dict[str, dict[str, Any]]:
    """The cards by name, in the form of `Metric.card`."""
    return {
        name: {
            "name": name,
            "family": "alignment",
            "meaning": meaning,
            "text": f"{meaning}\n\n{text}",
            "low": low,
            "high": high,
            "ignores": [],
            "needs": ["Gradients"],
            "paper": "bernas2026",
            "version": 1,
        }
        for name, meaning, text, low, high in _MEASURES
    }
