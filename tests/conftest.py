"""What all tests share: which of them compute numbers, and how hypothesis searches."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

# `make test-kernels` runs the tests that compare computed numbers, marked `numeric`: those whose code, or a helper in
# the same file that they call, orders two values or compares them for closeness or equal bits; and the pages, which
# show numbers. Left out is what orders only sizes, counts and times, runs whole commands, or compares two processes
# that use the same kernel.
NUMBERS_COMPARED = {"approx", "assert_close", "assert_allclose", "allclose", "equal", "array_equal"}
PAGES = "test_pages"
COMMANDS = "test_every_command"
NOT_FAST = {
    "laws/test_odd_inputs",
    "sweep/test_driver::test_the_command_prints_its_outcome_and_fails_if_a_task_failed",
    "test_every_command::test_json_is_the_only_thing_on_stdout",  # runs every command a second time
}
NOT_NUMERIC_FOLDERS = {"browser", "cli", "data", "models", "report", "store"}
NOT_NUMERIC = {
    "integrations/test_torchmetrics::test_ranks_are_added_by_compute",
    "laws/test_odd_inputs",
    "laws/test_structure",
    "measurement/test_cost",
    "measurement/test_geometry::test_ranks_add_up_with_one_call",
    "measurement/test_holdings",
    "measurement/test_resume",
    "measurement/test_site_statistics::test_several_ranks_record_what_one_process_records",
    "studies/atlas/test_atlas_runs",
    "studies/claims/test_background_training",
    "studies/claims/test_claim",
    "studies/claims/test_runner",
    "studies/claims/test_task_files",
    "studies/lab/test_tracking",
    "studies/lab/test_train::test_resume_restores_everything_after_ctrl_c_and_kill[2]",
    "studies/test_demo_clouds",
    "studies/test_demo_training",
    "sweep/test_engines",
    "test_api_reference",
    "test_distributed::test_statistics_add_over_ranks_even_where_one_rank_has_no_rows",
    "test_environment",
    "test_every_command",
    "test_extras",
    "test_margins",
    "test_packaging",
    "test_site",
    "tracker/test_roll_call",
    "tracker/test_step_scalars::test_two_ranks_with_sharded_parameters_give_the_scalars_of_one_process",
    "tracker/test_tracker::test_three_hundred_tracked_steps_leave_no_memory_files_or_hooks_behind",
    "tracker/test_tracker::test_two_ranks_record_the_same_as_one_process_and_train_as_without_a_tracker",
}

# The same examples on every run: a test that passes here passes there. `--hypothesis-profile search` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=1000, help="faults over all tasks in the slow test of resuming")
    parser.addoption("--kill-seed", type=int, default=0, help="seed of their kinds and moments")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the selection, since importing all of them takes half a minute."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    chosen = str(config.getoption("markexpr")).split()[:1]
    if chosen == ["numeric"]:
        return not _may_be_numeric(collection_path) or None
    return (chosen == ["fast"] and not _is_fast(collection_path)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-kernels` and `make test-fast` choose by."""
    for item in items:
        name = _name(item.path)
        compares = name == PAGES or _function(item) in _comparing(item.path)
        left_out = {f"{name}::{item.name}", f"{name}::{_function(item)}"} & NOT_NUMERIC
        if _may_be_numeric(item.path) and compares and not left_out:
            item.add_marker(pytest.mark.numeric)
        if _is_fast(item.path) and f"{name}::{_function(item)}" not in NOT_FAST:
            item.add_marker(pytest.mark.fast)


def _function(item: pytest.Item) -> str:
    """The name of a test without its parameters; empty for a document."""
    return getattr(item, "originalname", "")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


def _may_be_numeric(path: Path) -> bool:
    """Whether a file can hold tests of `make test-kernels`."""
    name = _name(path)
    left_out = name in NOT_NUMERIC or name.split("/")[0] in NOT_NUMERIC_FOLDERS
    return not left_out and (name == PAGES or bool(_comparing(path)))


@cache
def _is_fast(path: Path) -> bool:
    """Whether the tests of a file belong to `make test-fast`: laws, comparisons with oracles, every command once."""
    name = _name(path)
    return name not in NOT_FAST and (
        name.startswith("laws/") or "from tests.oracles" in path.read_text() or name == COMMANDS
    )


@cache
def _comparing(path: Path) -> set[str]:
    """The functions of a test file that compare numbers themselves, or call one of the file that does."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    direct = {function.name for function in functions if any(map(_compares, ast.walk(function)))}
    calls = {f.name: {node.id for node in ast.walk(f) if isinstance(node, ast.Name)} for f in functions}
    return {name for name, names in calls.items() if name in direct or names & direct}


def _compares(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return any(isinstance(order, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for order in node.ops)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in NUMBERS_COMPARED
