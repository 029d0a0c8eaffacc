"""The plugin that records how close assertions come to their limits, and the table that `make test-kernels` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import SETTINGS, Margin, near, supported, table

ROOT = Path(__file__).parent.parent
SUITE = """
import numpy as np
import pytest
import torch

def test_order():
    assert 0.95 < 1.0
    assert 0.5 < 0.75 < 1.0
    assert 3 < 4

def test_closeness():
    assert 1.09 == pytest.approx(1.0, abs=0.1)
    assert [1.0, 2.05] == pytest.approx([1.0, 2.0], abs=0.1)
    torch.testing.assert_close(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0]), rtol=0, atol=0.25)
    np.testing.assert_allclose(np.array([1.0]), np.array([1.01]), rtol=0, atol=0.1)

def test_a_failure():
    assert 1.1 < 1.0
"""


@pytest.fixture
def recorded(tmp_path: Path) -> list[dict[str, object]]:
    """What the plugin records of a small suite in a process of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_small.py").write_text(SUITE)
    (tmp_path / "margins").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "tests.margins", f"--margins={tmp_path / 'margins'}"]
    command += ["-o", "enable_assertion_pass_hook=true", "-p", "no:cacheprovider", "test_small.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    return [json.loads(line) for line in (tmp_path / "margins" / "main.jsonl").read_text().splitlines()]


def test_every_numeric_assertion_is_recorded_with_the_room_it_had(recorded: list[dict[str, object]]) -> None:
    gaps = {str(line["line"]).partition(":")[2]: line["gap"] for line in recorded}
    wanted = {
        "7": 0.05,
        "8": 0.25,
        "12": 0.1,
        "13": 0.5,
        "14": 0.2,
        "15": 0.9,
    }
    # line 8 is a chain: its closer link counts
    assert {line: gaps[line] for line in wanted} == pytest.approx(wanted, abs=1e-6)
    assert "9" not in gaps  # whole numbers do not round


def test_the_table_shows_what_is_near_its_limit_and_moves() -> None:
    def margin(setting: str, line: str, gap: float) -> Margin:
        return Margin(setting, "tests/test_a.py::test_b", line, "0.9 < 1", gap)

    seen = [margin("A", "1", 0.1), margin("B", "1", 0.15)]  # near, moves
    seen += [margin("A", "2", 0.1), margin("B", "2", 0.1)]  # near, the same everywhere
    seen += [margin("A", "3", 0.4), margin("B", "3", 0.9)]  # moves, with room
    assert near(seen) == [seen[0]]
    assert "10.0%  A" in table(near(seen))


def test_settings_name_a_variable_and_a_value() -> None:
    assert all(setting.count("=") == 1 for setting in SETTINGS)
    assert supported("OMP_NUM_THREADS=1")
