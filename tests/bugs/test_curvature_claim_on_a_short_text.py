"""The claim about curvature lost its published line, a simulation, if a text had too few types for the control."""

from types import SimpleNamespace
from typing import Any

from anisoscope.studies.claims.claim import MODEL, Evidence
from anisoscope.studies.claims.conditions import INCONCLUSIVE, REPRODUCED
from anisoscope.studies.claims.curvature_evidence import pinning_evidence
from anisoscope.studies.claims.gates import gates_left_out
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.run_view import Missing
from anisoscope.studies.claims.runner import find_claims, find_size

CLAIM = find_claims(["T6"])[0]
REASON = "Only 13 token types occur in 8 different passages, too few to compare. Give a longer text."


def too_short(_: Any) -> None:
    raise Missing(REASON)


def evidence(_: Any, quantities: Any, records: Any, *, left_out: Any, note: str) -> Evidence:
    gates = gates_left_out(CLAIM.all_gates)  # the losses of a given model are unknown
    return Evidence(note, MODEL, quantities, {**gates, **left_out}, tuple(records))


def test_a_short_text_leaves_only_the_control_open() -> None:
    subjects: Any = SimpleNamespace(
        size=find_size("tiny"),
        lab=SimpleNamespace(on_status=lambda _: None),
        models=lambda _: [SimpleNamespace(per_unit=too_short)],
        evidence=evidence,
    )
    published, control = judge(CLAIM, pinning_evidence(subjects))
    assert published.outcome == REPRODUCED
    assert control.outcome == INCONCLUSIVE
    assert any(REASON.removesuffix(".") in condition for condition in control.reasons.conditions)
