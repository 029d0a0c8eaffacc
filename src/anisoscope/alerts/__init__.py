"""Alert rules for training: a rule takes the records of one measurement and returns alerts.

An alert is a record with the metric `alert` and the rule's name in its variant, so it is stored, shown and logged
like any other. Its note says what happened, since when, how unusual it is and what usually helps. A rule may remember
earlier records; it is called in the order of the steps.

`stability()` returns the rules that protect a training, `papers()` those for signs of failure that the literature
reports, `standard()` both.

>>> from anisoscope.records import Record
>>> (found,) = high_cosine(above=0.9)([Record("resid.0", "mean_cosine", 0.97, tokens="no-sink", step=400)])
>>> found.note.split(";")[0]
'mean cosine above 0.9 in all 1 layers (lowest 0.97)'
"""

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
    missing_bell,
    sharp_parallel_drift,
)
from anisoscope.alerts.presets import papers, stability, standard
from anisoscope.alerts.rules import Rule, alert, call, stop

__all__ = [
    "Rule",
    "alert",
    "call",
    "collapse",
    "collapsing_profile",
    "constant_output",
    "dead_layer",
    "dimension_fell",
    "flat_profile",
    "gradient_spike",
    "high_cosine",
    "kurtosis_onset",
    "large_updates",
    "logits_grow",
    "loss_spike",
    "low_rank",
    "massive_onset",
    "missing_bell",
    "not_finite",
    "papers",
    "router_collapse",
    "sharp_parallel_drift",
    "stability",
    "standard",
    "stop",
    "update_spike",
]
