"""Descriptions of the tangent test's metrics; a run keeps them, so that it renders without this package."""

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
        "E/(r/d): 1 if the basis is unrelated to the gradients.",
        0,
        None,
    ),
    (
        "gradient_excess",
        "Gradient energy less the level of a null or the energy of a reference; index is the rank.",
        "E − E₀, with a paired error if both come from the same blocks.",
        -1,
        1,
    ),
    (
        "gradient_p",
        "Probability of at least the observed energy under the null that the variant names; index is the rank.",
        "Beta distribution, or (1 + draws at least as large)/(1 + draws).",
        0,
        1,
    ),
    (
        "gradient_q",
        "False discovery rate at which the p-value would be significant; index is the rank.",
        "Benjamini–Hochberg over sites, steps, ranks and proxies; each null is a separate family.",
        0,
        1,
    ),
    (
        "tangent_normal_ratio",
        "Gradient energy inside a basis over that inside random ones orthogonal to it; index is the rank.",
        "E/E_N; E_N is (1 − E)r/(d − r) on average, so it is a transform of the energy: read it together with E.",
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
        "How much more isotropic the gradients become when a basis is removed; index is its rank.",
        "ΔIsoScore* (ζ = 0.2), projected after shrinking; the null is a random subspace: normal, or of equal energy.",
        -1,
        1,
    ),
    (
        "anisotropy_split",
        "Shares of the squared covariance of gradients inside a basis, across, outside; index is its rank.",
        "tr Σ² = ‖PᵀΣPᵀ‖² + 2‖PᵀΣPᴺ‖² + ‖PᴺΣPᴺ‖², as shares.",
        0,
        1,
    ),
    (
        "transfer_slope",
        "How gradient energy along a principal axis grows with the activations' variance along it.",
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
        "Share of the activations' variance along a principal axis of other tokens; index is the axis.",
        "λ_j/Σλ on the test tokens.",
        0,
        1,
    ),
    (
        "local_excess",
        "Energy of gradients in the basis of their own patch of the cloud, less that in other patches' bases.",
        "Mean diagonal of the doubly centred M_jk, times K/(K − 1).",
        -1,
        1,
    ),
    (
        "frequency_distance",
        "Correlation of a token type's log frequency with the distance of its centroid to the mean.",
        "Pearson and Spearman, as published; split_half is the control without σ²/n.",
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
        "Share of the activations that semi-NMF does not explain; index is the number of concepts.",
        "‖X − ZD‖/‖X‖.",
        0,
        1,
    ),
)


VERSIONS = {"anisotropy_share": 2}  # ζ was 0.1; all others are of version 1


def tangent_cards() -> dict[str, dict[str, Any]]:
    """The descriptions by name, in the form of `Metric.card`."""
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
            "version": VERSIONS.get(name, 1),
            "notable": "high" if name in ("gradient_energy", "gradient_enrichment") else None,
            "row_effect": "any",
        }
        for name, meaning, text, low, high in _MEASURES
    }
