"""The questions of a report in their order, and the metrics that belong to each."""

from __future__ import annotations

from collections.abc import Mapping

QUESTIONS: Mapping[str, str] = {
    "cone": "How narrow is the cone?",
    "directions": "How many directions are used?",
    "causes": "Who causes it?",
    "attention": "What does attention do?",
    "gradients": "Do gradients follow the activations?",
    "development": "How did it develop?",
    "concepts": "Which concepts did it form?",
    "claims": "What do the papers say?",
}
_METRICS = {
    "cone": (
        *("mean_cosine", "mean_cosine_centred", "mean_cosine_across_documents", "relative_drift", "drift_norm"),
        *("cosine_contribution", "self_similarity", "intra_sentence_similarity", "max_explainable_variance"),
    ),
    "directions": (
        *("spectral_anisotropy", "spectral_anisotropy_uncentred", "singular_anisotropy", "spectrum", "top_share"),
        *("participation_ratio", "participation_ratio_unbiased", "effective_rank", "rankme", "stable_rank", "isoscore"),
        *("isoscore_star", "partition_isotropy", "two_nn", "two_nn_ml", "two_nn_paper", "gride", "mle_dimension"),
        *("local_pca_dimension", "local_isotropy", "power_law_alpha", "tail_condition", "tyler_share"),
    ),
    "causes": (
        *("removal_curve", "tokens_to_halve", "massive_tokens", "outlier_dimensions", "top_coordinate"),
        *("feature_kurtosis", "massive_activations"),
    ),
    "attention": (
        *(
            "attention_entropy",
            "sink_mass",
            "sink_rate",
            "logit_max",
            "logit_budget",
            "qk_cosine",
            "q_drift",
            "k_drift",
        ),
        *("q_direction_drift", "k_direction_drift"),
    ),
    "development": (
        *("train_loss", "validation_loss", "learning_rate", "gradient_norm", "update_ratio", "write_ratio", "alert"),
        *("mean_direction_drift", "subspace_angle", "cka", "trajectory"),
    ),
    "concepts": (
        *("concept_share", "concept_drift", "concept_stability", "concepts_born", "concepts_died"),
        *("concept_error", "concept_rank"),
    ),
    "claims": ("verdict",),
}
_TOPIC = {metric: topic for topic, metrics in _METRICS.items() for metric in metrics}
OTHER = "other"
DETAILS = "details"  # of notes on single metrics that belong to no one question


def topic_of(metric: str) -> str:
    """The question that a metric belongs to; `other` if it is not known.

    >>> topic_of("mean_cosine"), topic_of("gradient_energy"), topic_of("my_metric")
    ('cone', 'gradients', 'other')
    """
    if metric not in _TOPIC and metric.startswith(("gradient_", "tangent_", "transfer_", "local_excess")):
        return "gradients"
    return _TOPIC.get(metric, OTHER)
