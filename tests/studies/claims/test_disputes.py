"""Disputes hold every claim once, and their summary names every verdict."""

from __future__ import annotations

from anisoscope.studies.claims.claim import CONTROL, PUBLISHED, Reasons, Verdict
from anisoscope.studies.claims.conditions import INCONCLUSIVE, REPRODUCED
from anisoscope.studies.claims.disputes import DISPUTES, dispute_summary, disputes_text, measured_on
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.runner import CLAIMS


def verdict(line: str, outcome: str, ran: str = "") -> Verdict:
    return Verdict("S1", line, outcome, Estimate(0.2, 0.1, 5), Reasons((), "", ran))


def test_every_claim_belongs_to_one_dispute() -> None:
    named = [name for dispute in DISPUTES for name in (*dispute.headline, *dispute.others)]
    assert sorted(named) == sorted(claim.id for claim in CLAIMS)


def test_a_summary_names_every_claim_under_its_outcome() -> None:
    pair = (verdict(PUBLISHED, REPRODUCED), verdict(CONTROL, INCONCLUSIVE))
    text = dispute_summary(DISPUTES[0], {"S1": pair})
    assert text.startswith("As published: reproduced (S1), not run (S2, S6,")
    assert "Under control: inconclusive (S1), not run (S2," in text
    assert disputes_text([(CLAIMS[0], pair)]).count("**") == 2 * len(DISPUTES)


def test_what_was_run_is_told_in_a_few_words() -> None:
    ran = "lab, size small: 5 seeds (3 for models that only figures show), 6 layers of width 64"
    assert measured_on([verdict(PUBLISHED, REPRODUCED, ran)]) == "lab, size small, 5 seeds"
    assert measured_on([verdict(PUBLISHED, REPRODUCED)]) == ""
