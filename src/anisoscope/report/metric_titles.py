"""The titles of figures: what a metric is, in plain words."""

from __future__ import annotations

from anisoscope.report.heroes import title_of_metric

_TITLES = {
    "mean_cosine_centred": "Mean cosine after subtracting the mean",
    "relative_drift": "Mean vector's share of the tokens' norm",
    "gride": "Intrinsic dimension by scale (neighbours)",
    "top_coordinate": "One coordinate's share of the top direction",
    "outlier_dimensions": "Coordinates that stand out",
    "feature_kurtosis": "Kurtosis of the coordinates",
    "attention_entropy": "Entropy of attention, share of uniform",
    "sink_mass": "Attention on the first token",
    "sink_rate": "Share of heads with over 30 % of their weight on the first token",
    "logit_max": "Largest attention logit",
    "qk_cosine": "Cosine of mean query and mean key",
    "q_drift": "Mean query's share of the queries' norm",
    "k_drift": "Mean key's share of the keys' norm",
    "learning_rate": "Learning rate",
    "gradient_norm": "Norm of the gradient",
    "update_ratio": "Update over weight norm",
    "gradient_energy": "Gradients' energy in the tangent proxy",
}


def title(metric: str) -> str:
    """The title of a figure of this metric."""
    return _TITLES.get(metric) or title_of_metric(metric)
