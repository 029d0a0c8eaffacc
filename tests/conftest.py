"""What all tests share: which of them compute numbers, and how hypothesis searches."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

# Files and single tests that compare no computed number with a limit: text, files, locks, sizes, whole commands, runs
# with themselves.
# All others are marked `numeric`, which is what `make test-kernels` runs under other kernels.
NOT_NUMERIC_FOLDERS = {"browser", "cli", "data", "models", "report", "store"}
NOT_NUMERIC = {
    "bugs/test_lab_killed_at_its_start",
    "hooks/test_find",
    "integrations/test_loggers",
    "laws/test_docstrings",
    "laws/test_imports",
    "laws/test_language",
    "laws/test_odd_inputs",
    "laws/test_structure",
    "measurement/test_cost",
    "measurement/test_finished_run",
    "measurement/test_holdings",
    "measurement/test_resume",
    "measurement/test_run_output",
    "studies/atlas/test_atlas_runs",
    "studies/atlas/test_packages",
    "studies/claims/test_background_training",
    "studies/claims/test_claim",
    "studies/claims/test_runner",
    "studies/lab/test_bf16",
    "studies/lab/test_docstrings",
    "studies/lab/test_folders",
    "studies/lab/test_token_data",
    "studies/lab/test_tracking",
    "studies/lab/test_training_run",
    "studies/lab/test_training_state",
    "studies/lab/test_twins",
    "studies/test_demo_clouds",
    "studies/test_demo_training",
    "sweep/test_driver::test_the_command_prints_its_outcome_and_fails_if_a_task_failed",
    "sweep/test_engines",
    "sweep/test_tasks",
    "test_api_reference",
    "test_docs",
    "test_environment",
    "test_every_command",
    "test_extras",
    "test_margins",
    "test_packaging",
    "test_schedule",
    "test_site",
    "tracker/test_journal",
    "tracker/test_roll_call",
    "tracker/test_tracker::test_three_hundred_tracked_steps_leave_no_memory_files_or_hooks_behind",
}

# The same examples on every run: a test that passes here passes there. `--hypothesis-profile search` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=1000, help="faults over all tasks in the slow test of resuming")
    parser.addoption("--kill-seed", type=int, default=0, help="seed of their kinds and moments")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-kernels` and `make test-fast` choose by."""
    for item in items:
        name = str(item.path.relative_to(ROOT).with_suffix(""))
        listed = {name, f"{name}::{item.name}"} & NOT_NUMERIC
        if not listed and name.split("/")[0] not in NOT_NUMERIC_FOLDERS:
            item.add_marker(pytest.mark.numeric)
        if name.startswith("laws/") or _uses_oracles(item.path):
            item.add_marker(pytest.mark.fast)


@cache
def _uses_oracles(path: Path) -> bool:
    """Whether a test's file compares with the slow reference implementations in tests/oracles/."""
    return "from tests.oracles" in path.read_text()
