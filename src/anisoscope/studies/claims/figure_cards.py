"""Meanings of the numbers in the figures of claims that are not metrics of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anisoscope.metrics import catalogue
from anisoscope.records import Record
from anisoscope.tangent.metric_cards import tangent_cards

_MEANINGS = {
    "intrinsic_dimension": "Intrinsic dimension, mean over layers, by estimator.",
    "energy_by_gradient": "Share of each kind of gradient inside the basis; the tick is its null value.",
    "log_enrichment": "Log of the gradient energy over that of a random basis, mean over layers.",
    "frequency_correlation": "Correlation of a token's log frequency with the distance of its centroid.",
    "achieved_gain": "Gain in isotropy of removing a basis, over that of the gradients' own leading directions.",
    "anisotropy_at_equal_loss": "λ1/Σλ at the step at which both trainings have the same loss, mean over layers.",
    "change_in_basis": "Share of the activations' change inside the basis, beyond the share of their own variance.",
    "cosine_by_cause": "Mean cosine of hidden states, mean over layers.",
    "drift_correlation": "Correlation over layers of the mean cosine with the norm of the mean.",
    "downstream_score": "Accuracy of a probe, or mean reciprocal rank of the right match; their mean over tasks.",
    "final_isotropy": "1 − mean cosine of the final states.",
    "rank_of_last_token": "RankMe of the final states of last tokens.",
    "exponent_of_last_token": "Exponent α of the power law of their eigenvalues.",
    "radius_correlation": "Correlation over token types of log frequency with the log of a type's radius.",
    "local_curvature": "Signal-to-noise ratio of curvature within types, of the rarest and most frequent third.",
    "curvature_snr": "Normal variance that a quadratic of the tangent part explains, divided by the rest.",
    "curvature_visibility": "Share of the variance that is normal to the surface.",
    "curvature_drop": "Loss of curvature's signal-to-noise through pinning, at equal n_eff.",
    "block_cosine_in": "Mean cosine of what enters the block; index is N in hundredths of a token's norm.",
    "block_cosine_out": "Mean cosine of what leaves the block; index is N in hundredths of a token's norm.",
    "block_norm_out": "Norm of the mean of what leaves the block; index is N in hundredths of a token's norm.",
    "block_entropy": "Attention entropy relative to even attention; index is N in hundredths of a token's norm.",
    "block_logit_std": "Standard deviation of the logits; index is N in hundredths of a token's norm.",
    "block_largest": "Largest attention weight; index is N in hundredths of a token's norm.",
    "partition_isotropy_rescaled": "I(W) of rows of unit mean square, both signs, trained rows only.",
    "cosine_around_norms": "Mean cosine before and after every BatchNorm of the convolutional network, in order.",
    "embedding_cosine": "Mean cosine of the output embeddings.",
    "final_cosine": "Mean cosine of the final states.",
    "both_lenses": "The same model: cosine of hidden states, I of its vocabulary matrix.",
    "validation_loss": "Loss on held-out text in nats per token.",
    "task_score": "Mean score of the downstream tasks.",
    "score_by_task": "Score of each downstream task: those of the user, and those of the package.",
    "reached_isotropy": "What the dose is meant to move: IsoScore, or minus the mean cosine; mean over layers.",
    "parallel_means": "|cos(q̄, k̄)|, mean over heads.",
    "mean_entropy": "Attention entropy relative to even attention, mean over heads.",
    "mean_drift": "Length of mean query and mean key over the typical length, mean over heads.",
}


def cards_of(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return the cards of the metrics of some records, as runs store them."""
    known = {name: metric.card() for name, metric in catalogue().items()} | tangent_cards()
    known |= {name: {"name": name, "meaning": meaning, "text": meaning} for name, meaning in _MEANINGS.items()}
    return {record.metric: known.get(record.metric, {}) for record in records}
