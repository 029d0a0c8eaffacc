"""Evidence of models that were never measured, for tests of the page and of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anisoscope.studies.atlas.evidence import ModelEvidence


def profile(values: Sequence[float], error: float | None = 0.01) -> list[list[Any]]:
    """Return a profile: the embedding, then one layer per value."""
    sites = ["embed", *(f"resid.{layer}" for layer in range(len(values) - 1))]
    return [[site, value, error, None] for site, value in zip(sites, values, strict=True)]


def model(
    name: str = "tiny", kind: str = "decoder", *, modality: str = "English", width: int = 32, **metrics: Any
) -> ModelEvidence:
    """Return a model; `metrics` are values for all tokens, or a pair (all tokens, no-sink)."""
    trained = {}
    for metric, values in metrics.items():
        every, kept = values if isinstance(values, tuple) else (values, values)
        trained[metric] = {"all": profile(every), "no-sink": profile(kept)}
    untrained = {metric: {"all": profile([0.1] * 5), "no-sink": profile([0.1] * 5)} for metric in metrics}
    entry = {"describes": "a text", "tokens": 16384, "trained": trained, "untrained": untrained}
    return ModelEvidence(
        name=name,
        family="GPT-2",
        kind=kind,
        modality=modality,
        precision="float32",
        licence="MIT",
        packages=["tiny==1.0"],
        note="",
        parameters=1000,
        width=width,
        check="1.00 nats per token (≤ 2)",
        seconds=10,
        memory=100,
        inputs={"text": entry},
    )
