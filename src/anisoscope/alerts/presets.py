"""Sets of rules for `Tracker(..., alerts=…)`."""

from __future__ import annotations

from anisoscope.alerts.geometry_rules import (
    constant_output,
    dead_layer,
    kurtosis_onset,
    logits_grow,
    low_rank,
    massive_onset,
    router_collapse,
)
from anisoscope.alerts.loop_rules import gradient_spike, large_updates, loss_spike, not_finite, update_spike
from anisoscope.alerts.paper_rules import (
    collapse,
    collapsing_profile,
    dimension_fell,
    flat_profile,
    high_cosine,
    sharp_parallel_drift,
)
from anisoscope.alerts.rules import Rule


def stability() -> list[Rule]:
    """Return the rules that protect a training: values that are not finite, spikes, growth, dead or collapsed layers.

    The benchmark `alerts` plants each fault and trains ten healthy models; it prints the lead in steps and the false
    alarms.
    """
    return [
        not_finite(),
        loss_spike(),
        gradient_spike(),
        update_spike(),
        large_updates(),
        logits_grow(),
        kurtosis_onset(),
        massive_onset(),
        dead_layer(),
        low_rank(),
        constant_output(),
        router_collapse(),
    ]


def papers() -> list[Rule]:
    """Return the rules for signs of failure that the literature on representation geometry reports."""
    return [
        collapse(),
        dimension_fell(),
        high_cosine(),
        sharp_parallel_drift(),
        flat_profile(),
        collapsing_profile(),
    ]


def standard() -> list[Rule]:
    """Return the rules of both presets, `stability` and `papers`."""
    return [*stability(), *papers()]
