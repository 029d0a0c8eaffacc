"""Tables of rules and verdicts, and the evidence that comes with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import MODEL, Evidence
from anisoscope.studies.claims.claim_tables import (
    losses_table,
    overview_row,
    overview_table,
    power_table,
    rules_table,
    sizes_table,
    verdicts_table,
)
from anisoscope.studies.claims.committed_evidence import committed, judged, pack_evidence, unpack_evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.runner import (
    CLAIMS,
    ClaimsRequest,
    find_claims,
    find_size,
    kept_evidence,
    last_verdicts,
    run_claims,
)

ROOT = Path(__file__).parents[3]


def test_tables_show_intervals_within_the_possible_values_and_the_power() -> None:
    (t2,) = find_claims(["T2"])
    quantities = {"removed": Estimate(0.967, 0.049, 5), "learnt": Estimate.exact(1), "settled": Estimate.exact(1)}
    pairs = [(t2, judge(t2, Evidence("r", MODEL, quantities)))]
    assert "0.967 [0.831, 1] over 5 seeds" in verdicts_table([t2], pairs)
    assert "| T2 | as published | 9" in power_table(pairs)  # about 90 % at this noise
    assert overview_row(t2, pairs[0][1])[3] == "**inconclusive**"  # the control was not measured
    assert overview_row(t2, None)[2:4] == ("not run", "not run")
    assert "| T2 | loss of counts" in rules_table([t2])


def test_losses_show_whether_the_worst_seed_has_learnt() -> None:
    row = {"cell": "decoder", "steps": 3000, "counts": 2.57, "frequencies": 3.3, "change_at_end": 0.012}
    assert "| yes | 1.2% |" in losses_table([{**row, "losses": [1.29, 1.3]}])
    assert "| no |" in losses_table([{**row, "losses": [1.29, 2.4]}])


def test_evidence_survives_packing_and_is_judged_again(tmp_path: Path) -> None:
    request = ClaimsRequest(find_size("tiny"))
    list(run_claims(find_claims(["A4", "N4"]), tmp_path / "run", request))
    packed = pack_evidence(tmp_path / "run")
    assert list(packed["claims"]) == ["A4", "N4"]
    assert packed["losses"] == []
    again = unpack_evidence(packed, tmp_path / "again")
    assert last_verdicts(again) == last_verdicts(tmp_path / "run")
    before, after = (kept_evidence(folder, "N4") for folder in (tmp_path / "run", again))
    assert before is not None
    assert after is not None
    assert before.estimates == after.estimates
    assert {record.metric for record in after.records} == {"mean_cosine"}
    Run.create(tmp_path / "other", {"kind": "lab"}).close()
    with pytest.raises(InputError, match="not of claims"):
        pack_evidence(tmp_path / "other")


def test_the_docs_show_the_verdicts_of_the_committed_evidence() -> None:
    packed = committed()
    assert packed["settings"]["size"] == "small"
    page = (ROOT / "docs" / "claims.md").read_text()
    pairs = judged(packed)
    for table in (overview_table(CLAIMS, pairs), verdicts_table(CLAIMS, pairs), power_table(pairs)):
        assert table in page
    assert losses_table(packed["losses"]) in page


def test_the_docs_show_the_verdicts_of_the_larger_size_next_to_them() -> None:
    packed = committed("medium")
    assert packed["settings"]["size"] == "medium"
    page = (ROOT / "docs" / "claims.md").read_text()
    assert sizes_table(judged(committed()), judged(packed)) in page
    assert losses_table(packed["losses"]) in page
    with pytest.raises(InputError, match="No evidence of size named 'tiny'"):
        committed("tiny")
