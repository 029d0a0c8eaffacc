"""The chart of cosines shows the shares of the check."""

from __future__ import annotations

import pytest

from anisoscope.report.cosine_chart import cosine_chart, cosine_table


def test_every_bin_of_both_panels_is_drawn() -> None:
    shares = {"random": [0.5, 0.25, 0.25, 0.0], "nearest": [0.0, 0.0, 0.0, 1.0]}
    details = {"cosines": {"bins": 4, "none": shares, "centre": shares, "centre, whiten": shares}}
    table = cosine_table(details)
    assert len(table) == 2 * 2 * 4
    assert sorted(set(table["cosine"])) == pytest.approx([-0.75, -0.25, 0.25, 0.75])
    assert table.groupby(["rows", "pairs"])["share"].sum().tolist() == pytest.approx([1.0] * 4)
    spec = cosine_chart(details).to_dict()
    assert spec["spec"]["encoding"]["x"]["title"] == "cosine of a pair"
