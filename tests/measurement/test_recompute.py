"""A metric that is computed from stored statistics has the value that the measurement had, under both policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.errors import InputError
from tests.sweep_folders import documents

NAMES = ["mean_cosine", "mean_cosine_across_documents", "isoscore", "two_nn"]


def test_recomputed_values_equal_those_that_were_measured(folder: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": documents(tmp_path / "text.jsonl"), "tokens": 600, "window": 32}
    request |= {"sites": ["resid"], "metrics": NAMES, "errors": False, "keep_statistics": True}
    run = anisoscope.measure(folder, **request, out=tmp_path / "run")
    measured = {(r.site, r.metric, r.tokens, r.index, str(r.variant)): r.value for r in run.records()}
    again = anisoscope.recompute(tmp_path / "run", NAMES)
    assert {r.tokens for r in again} == {"all", "no-sink"}
    for r in again:
        # sums are those of all rows, or are added block by block: 600 roundings at most
        before = measured[r.site, r.metric, r.tokens, r.index, str(r.variant)]
        assert r.value == pytest.approx(before, rel=600 * 2.3e-16 * 100)


def test_a_run_without_statistics_says_how_to_keep_them(tmp_path: Path) -> None:
    with anisoscope.Run.create(tmp_path / "run"):
        pass
    with pytest.raises(InputError, match=r"keeps no statistics; measure it again with --keep-statistics"):
        anisoscope.recompute(tmp_path / "run", ["isoscore"])
