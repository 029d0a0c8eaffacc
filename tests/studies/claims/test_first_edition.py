"""The table of verdicts that changed since the first edition."""

from __future__ import annotations

from anisoscope.studies.claims.claim import CONTROL, PUBLISHED, Reasons, Verdict
from anisoscope.studies.claims.conditions import NOT_REPRODUCED, REPRODUCED
from anisoscope.studies.claims.first_edition import FIRST_EDITION, changes_table
from anisoscope.studies.claims.runner import CLAIMS, find_claims


def pair(name: str, *outcomes: str) -> tuple[Verdict, Verdict]:
    a, b = (Verdict(name, line, o, None, Reasons(())) for line, o in zip((PUBLISHED, CONTROL), outcomes, strict=True))
    return a, b


def test_only_changed_verdicts_are_listed() -> None:
    t4, a4 = find_claims(["T4", "A4"])
    table = changes_table([(t4, pair("T4", REPRODUCED, REPRODUCED)), (a4, pair("A4", REPRODUCED, NOT_REPRODUCED))])
    assert "| T4 | inconclusive → **reproduced** | not reproduced → **reproduced** |" in table
    assert "A4" not in table


def test_every_claim_of_the_first_edition_is_known() -> None:
    new = {"A7", "N6", "C1", "C2"}
    assert set(FIRST_EDITION) == {claim.id for claim in CLAIMS} - new
