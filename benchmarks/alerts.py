"""Benchmark the alert rules: how early they find planted faults, and how often they fire in healthy trainings."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Figure, Outcome, Settings
from benchmarks.planted import FAULTS, HEALTHY, Training, train

STABILITY = frozenset(
    {
        "not_finite",
        "loss_spike",
        "gradient_spike",
        "update_spike",
        "large_updates",
        "logits_grow",
        "kurtosis_onset",
        "massive_onset",
        "dead_layer",
        "low_rank",
        "constant_output",
        "router_collapse",
    }
)


def alerts(settings: Settings) -> Outcome:
    """Train with each planted fault and ten healthy models, with default metrics and the rules of both presets."""
    answers: dict[str, dict[str, str]] = {}
    found = 0
    for fault in FAULTS[:2] if settings.quick else FAULTS:
        at, shows, rules = _planted(fault)
        found += at is not None
        answers[fault.name] = {
            "alert at step": _step(at),
            "by": ", ".join(rules) or "-",
            "loss shows it at": _step(shows),
            "lead in steps": "-" if at is None else "the loss does not show it" if shows is None else str(shows - at),
        }
    healthy = HEALTHY[:1] if settings.quick else HEALTHY
    alarms = {"stability": 0, "papers": 0}
    for seed, training in enumerate(healthy):
        raised = _healthy(training, seed)
        alarms["stability"] += bool(raised & STABILITY)
        alarms["papers"] += bool(raised - STABILITY)
        answers[training.name] = {"alert at step": ", ".join(sorted(raised)) or "none"}
    planted = len(FAULTS[:2] if settings.quick else FAULTS)
    return Outcome(
        [
            Figure(f"planted faults found, of {planted}", found, "", planted, at_least=True),
            Figure(
                f"healthy trainings with a false alarm of `stability`, of {len(healthy)}", alarms["stability"], "", 1
            ),
            Figure(f"healthy trainings with a false alarm of `papers`, of {len(healthy)}", alarms["papers"], "", 1),
        ],
        answers,
    )


def _planted(fault: Training) -> tuple[int | None, int | None, list[str]]:
    """The step of the first expected alert, the step at which the loss shows it, and the rules that fired then."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(fault, Path(folder) / "run")
    at = outcome.raised_at(fault.expects)
    return at, outcome.loss_shows_at(), sorted({rule for step, rule in outcome.raised if step == at})


def _healthy(training: Training, seed: int) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        return {rule for _, rule in train(training, Path(folder) / "run", seed=seed).raised}


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)
