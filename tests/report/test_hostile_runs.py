"""Untrusted run folders: whatever their files contain, the result is a page, a table or one clear error."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from anisoscope.cli import report as commands
from anisoscope.errors import AnisoscopeError, StoreError
from anisoscope.measurement.measure_rows import measure_rows
from anisoscope.measurement.recompute import recompute
from anisoscope.records import Record
from anisoscope.report.live import live_app
from anisoscope.report.page import report_page, write_report
from anisoscope.store.run import Run
from anisoscope.sweep.ledger import Ledger
from anisoscope.sweep.tasks import _names
from tests import report_runs as runs
from tests.damage import LONG, SHORT, damages

HOSTILE = "</script><script>window.taken=1</script>[/red]\x1b]0;taken\x07"


def used(path: Path) -> None:
    """Everything that reads a run: tables, sentences, a page, the live page."""
    with suppress(AnisoscopeError):
        report_page([Run.open(path)])
    with suppress(AnisoscopeError), redirect_stdout(io.StringIO()):
        commands.show(path)
    with suppress(AnisoscopeError), redirect_stdout(io.StringIO()):
        commands.compare(path, path, metrics=None, sites=True, as_json=False)
    client = TestClient(live_app(str(path.parent)), base_url="http://127.0.0.1")
    assert client.get("/api/runs").status_code == 200
    assert client.get("/api/records", params={"run": path.name}).status_code in (200, 404)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# The parts of a run's info that pages and tables read.
INFO_PATHS = (
    ("metrics",),
    ("metrics", "two_nn"),
    ("metrics", "two_nn", "low"),
    ("metrics", "two_nn", "meaning"),
    ("metrics", "two_nn", "ignores"),
    ("metrics", "two_nn", "text"),
    ("removed",),
    ("removed", "count"),
    ("removed", "tokens"),
    ("model",),
    ("model", "random_weights"),
    ("model", "source"),
    ("data",),
    ("data", "d"),
    ("interrupted",),
    ("unit",),
)


def check_info(folder: Path, paths: Iterable[tuple[str, ...]], value: Any) -> None:
    path = folder / "r"
    runs.make_run(path, runs.profiles((0, 10)))
    header = json.loads((path / "run.json").read_text())
    for *outer, last in paths:
        part = header["info"]
        for name in outer:
            part = part.setdefault(name, {})
        part[last] = value
    (path / "run.json").write_text(json.dumps(header))
    used(path)
    shutil.rmtree(folder)


@pytest.mark.parametrize("value", [5, "x", [5], {"a": 5}, [HOSTILE]])
def test_any_plain_value_in_the_info_gives_a_page_or_an_error(tmp_path: Path, value: Any) -> None:
    for depth in (1, 2, 3):
        check_info(tmp_path / str(depth), [path for path in INFO_PATHS if len(path) == depth], value)


@pytest.mark.slow
@given(st.sampled_from(INFO_PATHS), json_values)
@settings(LONG, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_in_the_info_gives_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, path: tuple[str, ...], value: Any
) -> None:
    check_info(tmp_path_factory.mktemp("info"), [path], value)


extreme = st.sampled_from([0.0, -0.0, 1e-320, 1e308, -1e308, 3.5, -2.0])
wholes = st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
sites = st.sampled_from(
    "resid.0 resid.999999999 embed final enc.final q.3.7 pattern.1 grad.resid.2 vectors vectors.constructor "
    f"in.datum['x'] in.__proto__ in.{'x' * 3000} weight.{HOSTILE}".split(" ")
)
texts = st.sampled_from(["a", HOSTILE, "__proto__", "all", "no-sink", "datum.value + 1", "two_nn", "verdict", "alert"])
records = st.builds(
    Record,
    site=sites,
    metric=texts,
    value=st.none() | extreme,
    step=wholes,
    version=wholes,
    tokens=texts,
    index=st.none() | wholes,
    variant=st.dictionaries(
        st.sampled_from(["null", "stratum", "axis", "of", "verdict", "claim", "__proto__", HOSTILE]),
        st.none() | st.booleans() | wholes | extreme | texts | st.just([1, {"a": None}]),
        max_size=2,
    ),
    error=st.none() | extreme,
    error_kind=st.none()
    | st.sampled_from(["jackknife-16-documents", "jackknife-1-rows", HOSTILE, "jackknife-" + "9" * 20]),
    null=st.none() | extreme,
    n=st.none() | wholes,
    note=st.none() | texts,
)


def check_records(folder: Path, records: list[Record]) -> None:
    runs.make_run(folder / "r", records)
    used(folder / "r")
    shutil.rmtree(folder)


@given(st.lists(records, min_size=1, max_size=6))
@settings(SHORT, max_examples=5)
def test_records_of_extreme_values_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, found: list[Record]
) -> None:
    check_records(tmp_path_factory.mktemp("extreme"), found)


@pytest.mark.slow
@given(st.lists(records, min_size=1, max_size=12))
@settings(LONG, max_examples=100)
def test_many_records_of_extreme_values_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, found: list[Record]
) -> None:
    check_records(tmp_path_factory.mktemp("extreme"), found)


# Damage to the files of a run.


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with statistics, as `measure --out` leaves it."""
    path = tmp_path_factory.mktemp("measured") / "r"
    rows = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    measure_rows(rows, ["mean_cosine", "isoscore", "two_nn"], out=path, keep_blocks=True)
    return path


def check_damage(folder: Path, measured: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = folder / "r"
    shutil.copytree(measured, path)
    [file] = [path / name] if "/" not in name else sorted(path.glob(name))[:1]
    file.write_bytes(damage(file.read_bytes()))
    if file.suffix == ".safetensors":
        with suppress(AnisoscopeError):
            recompute(path, ["participation_ratio"])
    else:
        used(path)
    shutil.rmtree(folder)


FILES = ("run.json", "records.jsonl", "replicates.jsonl", "stats/*/*.safetensors")


@pytest.mark.parametrize("name", FILES)
@given(damages)
@settings(SHORT, max_examples=3)
def test_damaged_files_of_a_run_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, measured: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    check_damage(tmp_path_factory.mktemp("damage"), measured, name, damage)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@given(damages)
@settings(LONG, max_examples=100)
def test_much_damage_to_the_files_of_a_run_gives_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, measured: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    check_damage(tmp_path_factory.mktemp("damage"), measured, name, damage)


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"5", b'{"key": 5}', b'{"step": 1}', b"[" * 100_000, b'{"key": "a", "sketch": ["x"]}', b"\xff"],
)
def test_a_damaged_ledger_is_reported_with_its_line(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(b'{"key": "a", "step": 1}\n' + line + b"\n")
    with pytest.raises(StoreError, match=r"tasks\.jsonl, line 2"):
        Ledger(tmp_path)


# Links and names.


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    """An untrusted folder may contain a report.html that is a link to a file of the user."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    run = runs.make_run(tmp_path / "r", runs.profiles())
    os.symlink(mine, run.path / "report.html")
    write_report([run], run.path / "report.html")
    assert mine.read_text() == "precious"
    assert not (run.path / "report.html").is_symlink()


def test_a_pipe_named_run_json_does_not_hang_the_list_of_runs(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    os.mkfifo(tmp_path / "bad" / "run.json")
    runs.make_run(tmp_path / "good", runs.profiles())
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert {entry["name"] for entry in client.get("/api/runs").json()} == {"good", "bad"}


def test_a_deeply_nested_run_json_does_not_hide_the_other_runs(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("[" * 200_000)
    runs.make_run(tmp_path / "good", runs.profiles())
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert {entry["name"] for entry in client.get("/api/runs").json()} == {"good", "bad"}


def test_a_folder_whose_name_is_not_unicode_does_not_break_the_list(tmp_path: Path) -> None:
    runs.make_run(tmp_path / "good", runs.profiles())
    shutil.copytree(tmp_path / "good", os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert [entry["id"] for entry in client.get("/api/runs").json()] == ["good"]


def test_names_of_a_list_do_not_lead_out_of_the_folder_of_runs() -> None:
    for names in (_names(["..", "a/.."]), _names(["/"]), _names(["../../x", "./x"])):
        assert not {"", ".", ".."} & {part for name in names for part in name.split("/")}
