"""Verdicts of the first edition of the rules, on trainings of 300 steps, and why each of them was revised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anisoscope.studies.claims.claim import Claim, Verdict
from anisoscope.studies.claims.claim_tables import markdown_table
from anisoscope.studies.claims.conditions import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED

_SHORT = "300 steps were too few: models had learnt little more than token frequencies"
# As published, under control, and why the verdict was revised.
FIRST_EDITION: Mapping[str, tuple[str, str, str]] = {
    "T1": (REPRODUCED, REPRODUCED, "compared with step 0 and with untied embeddings now"),
    "T2": (
        REPRODUCED,
        NOT_REPRODUCED,
        "the control failed where the claim is true; gradients must become rounder at all",
    ),
    "T3": (REPRODUCED, INCONCLUSIVE, f"{_SHORT}, encoders above all"),
    "T4": (INCONCLUSIVE, NOT_REPRODUCED, f"{_SHORT}; one condition worked against the claim"),
    "T5": (REPRODUCED, NOT_REPRODUCED, "46 types gave a power of 9 %; byte pairs now, and no p-value in the rule"),
    "T6": (REPRODUCED, REPRODUCED, "the control asks trained models now; the simulation has its answer built in"),
    "T7": (REPRODUCED, NOT_REPRODUCED, "trainings were compared at different losses; the null was r/d"),
    "S1": (NOT_REPRODUCED, NOT_REPRODUCED, f"{_SHORT}; the rule rejected the published GPT-2"),
    "S2": (NOT_REPRODUCED, NOT_REPRODUCED, f"{_SHORT}; the peak could be the first measurement"),
    "S3": (REPRODUCED, INCONCLUSIVE, "an unmet condition for testing has its own word now"),
    "S4": (REPRODUCED, NOT_REPRODUCED, "the level of isotropy within clusters is asked for as well"),
    "S5": (NOT_REPRODUCED, NOT_REPRODUCED, "measurements in the first transient do not count"),
    "S6": (INCONCLUSIVE, INCONCLUSIVE, _SHORT),
    "A1": (INCONCLUSIVE, INCONCLUSIVE, "an unmet condition for testing has its own word now"),
    "A2": (INCONCLUSIVE, INCONCLUSIVE, "an unmet condition for testing has its own word now"),
    "A3": (INCONCLUSIVE, INCONCLUSIVE, "the mean rise decides, instead of 80 of 80 blocks"),
    "A4": (REPRODUCED, NOT_REPRODUCED, "unchanged"),
    "A5": (INCONCLUSIVE, REPRODUCED, "learned positions as in the paper, instead of rotary ones"),
    "A6": (NOT_REPRODUCED, NOT_REPRODUCED, "not finding that something can happen does not refute it; more variants"),
    "N1": (INCONCLUSIVE, INCONCLUSIVE, "it is about large models, which the lab does not have"),
    "N2": (NOT_REPRODUCED, NOT_REPRODUCED, "it is about trainings of more than 1,000 tokens per parameter"),
    "N3": (NOT_REPRODUCED, NOT_REPRODUCED, "it is about large models, which the lab does not have"),
    "N4": (REPRODUCED, NOT_REPRODUCED, "the formula of the released sampler is used"),
    "N5": (NOT_REPRODUCED, INCONCLUSIVE, "a vocabulary of a hundred characters was too small"),
    "P1": (INCONCLUSIVE, INCONCLUSIVE, "the check of the dose was blind to centring; real tasks"),
    "P2": (INCONCLUSIVE, INCONCLUSIVE, _SHORT),
}


def changes_table(judged: Sequence[tuple[Claim, Sequence[Verdict]]]) -> str:
    """Return the claims whose verdicts differ from those of the first edition, with the reason."""
    rows = []
    for claim, verdicts in judged:
        if claim.id not in FIRST_EDITION:
            continue
        *before, why = FIRST_EDITION[claim.id]
        after = [verdict.outcome for verdict in verdicts]
        if before != after:
            changes = (a if a == b else f"{a} → **{b}**" for a, b in zip(before, after, strict=True))
            rows.append((claim.id, *changes, why))
    return markdown_table(("id", "as published", "under control", "why it was revised"), rows)
