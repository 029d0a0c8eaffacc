"""What the run of a training says about itself, and what a restarted training reads back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.data.windows import fingerprint
from anisoscope.measurement.run_output import run_info
from anisoscope.metrics import Metric
from anisoscope.records import Site
from anisoscope.tracker.concept_history import KEPT, ConceptHistory, concept_cards
from anisoscope.tracker.journal import Journal
from anisoscope.tracker.loop_scalars import scalar_cards
from anisoscope.tracker.probe import Probe
from anisoscope.tracker.step_gradients import Bases, gradient_cards


def training_info(
    probe: Probe, covered: set[bytes], of_gradients: Sequence[Metric], info: Mapping[str, Any], sample: int, seed: int
) -> dict[str, Any]:
    """Return the content of the run's `run.json`.

    Args:
        probe: The held-out tokens.
        covered: The digests of their windows.
        of_gradients: The metrics of the gradients.
        info: More facts.
        sample: Tokens kept for neighbours, pairs and bases.
        seed: Of the sample.
    """
    facts = {
        "kind": "training",
        "model": {"architecture": type(probe.model).__name__},
        "data": {"source": "held-out tokens", "tokens": probe.tokens, "windows": len(covered)},
        "probe": fingerprint(covered),
        "unit": probe.batches[0].unit,
        "seed": seed,
        "sample": sample,
        **info,
    }
    about = run_info(facts, [*probe.described, *of_gradients])
    about["metrics"] |= {
        **gradient_cards(),
        **scalar_cards(),
        **(concept_cards() if facts.get("concept_count") else {}),
    }
    return about


def restore(journal: Journal, probe: Probe, bases: Bases, concepts: ConceptHistory) -> int:
    """Restore from the run what a restarted training needs: reference, frozen bases, concepts and alerts.

    Returns:
        The number of probes before the restart. Training may restart far before the last probe.
    """
    for step, site, cloud in journal.kept_clouds("reference"):
        probe.reference[site], probe.reference_step = cloud, step
    for step, site, cloud in journal.kept_clouds("frozen"):
        bases.fit(Site.parse(site), cloud, step)
    if concepts.count:
        stored = {site: (step, arrays) for step, site, arrays in journal.kept_arrays(KEPT)}  # the last step of each
        concepts.restore(stored, journal.run.records())
    return journal.replay_alerts()
