"""What all tests share: which of them compute numbers, and how hypothesis searches."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# Files whose tests compare no computed number: text, files, locks, pages. Every other file is marked `numeric`,
# which is what `make test-kernels` runs under other kernels.
NOT_NUMERIC = {
    "test_batches",
    "test_charts",
    "test_checkpoints",
    "test_background_training",
    "test_cli",
    "test_columns",
    "test_disks",
    "test_docs",
    "test_doctor",
    "test_hostile_data",
    "test_hostile_models",
    "test_hostile_runs",
    "test_imports",
    "test_kills",
    "test_token_data",
    "test_live",
    "test_models",
    "test_packaging",
    "test_report",
    "test_report_compare",
    "test_schedule",
    "test_store",
    "test_sweep_downloads",
    "test_sweep_engines",
    "test_wrong_commands",
    # in a browser
    "test_injection",
    "test_live_page",
    "test_report_page",
}

# The same examples on every run: a test that passes here passes there. `--hypothesis-profile search` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `make test-kernels` and `make test-fast` choose by."""
    for item in items:
        if item.path.stem not in NOT_NUMERIC:
            item.add_marker(pytest.mark.numeric)
        if item.path.parent.name == "laws" or _uses_oracles(item.path):
            item.add_marker(pytest.mark.fast)


@cache
def _uses_oracles(path: Path) -> bool:
    """Whether a test's file compares with the slow twins in tests/oracles/."""
    return "from tests.oracles" in path.read_text()
