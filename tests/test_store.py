"""The store: what was appended is there, whatever happens to the process, the disk or the folder."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.records import COLUMNS, Record, Replicates
from anisoscope.store import files as disk
from anisoscope.store.run import Run, record_key
from anisoscope.store.run_header import FORMAT


def record(i: int = 0, **changes: Any) -> Record:
    return Record(**{"site": "resid.0", "metric": "isoscore", "value": i / 7, "step": i, "n": 100, **changes})


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A second process of the same Python, with pipes."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.none() | st.floats(allow_nan=False, allow_infinity=False)
wholes = st.integers(-(1 << 63), (1 << 63) - 1)
variants = st.dictionaries(texts, texts | st.booleans() | st.integers() | st.lists(texts, max_size=2), max_size=2)
any_record = st.builds(
    Record,
    site=st.sampled_from(["embed", "resid.11", "q.pre.3.4", "weight.Ä/../~ %41", "vectors"]),
    metric=texts,
    value=finite,
    run=texts.filter(bool),
    step=wholes,
    version=wholes,
    tokens=texts,
    index=st.none() | wholes,
    variant=variants,
    error=finite,
    error_kind=st.none() | texts,
    null=finite,
    n=st.none() | wholes,
    note=st.none() | texts,
)


# What goes in comes out.


@given(st.lists(any_record, max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_record_comes_back_equal_in_first_seen_order(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    path = tmp_path_factory.mktemp("runs") / "run"
    with Run.create(path) as run:
        run.append(records[:3])
        run.append(records[3:])
    expected = {record_key(r): r for r in records}
    assert list(Run.open(path).records()) == list(expected.values())


def test_a_new_run_knows_its_name_command_time_and_info(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a" / "exp1", info={"model": "gpt2", "seed": 3}, command="anisoscope measure") as run:
        assert list(run.records()) == []
    again = Run.open(tmp_path / "a" / "exp1")
    assert (again.name, again.command, again.info) == ("exp1", "anisoscope measure", {"model": "gpt2", "seed": 3})
    assert again.created.endswith("+00:00")
    assert Run.create(tmp_path / "b", name="another").name == "another"


def test_a_record_without_a_run_name_gets_that_of_the_run(tmp_path: Path) -> None:
    with Run.create(tmp_path / "exp1") as run:
        run.append([record(0), record(1, run="imported")])
        assert [r.run for r in run.records()] == ["exp1", "imported"]


def test_info_is_updated_by_merging_dicts_and_a_reader_sees_it(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r", info={"metrics": {"isoscore": {"low": 0}}, "tokens": 10}) as run:
        run.info["tokens"] = "a copy only"
        run.update_info(metrics={"two_nn": {"low": 1}}, tokens=20, shape=(2, 3))
        assert run.info == Run.open(tmp_path / "r").info
        assert run.info == {"metrics": {"isoscore": {"low": 0}, "two_nn": {"low": 1}}, "tokens": 20, "shape": [2, 3]}


def test_metrics_come_with_their_cards_and_sites_in_the_order_of_a_forward_pass(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r", info={"metrics": {"isoscore": {"low": 0}}}) as run:
        sites = ["final", "resid.10", "weight.lm_head", "resid.9", "embed", "attn.10"]
        run.append([record(site=site) for site in sites] + [record(metric="two_nn")])
        assert run.metrics() == {"isoscore": {"low": 0}, "two_nn": {}}
        assert run.sites() == ["embed", "resid.0", "resid.9", "attn.10", "resid.10", "final", "weight.lm_head"]


def test_resuming_keeps_records_and_info_and_adds_what_the_info_lacked(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r", info={"model": "a"}) as run:
        run.append([record(0)])
        created = run.created
    with Run.create(tmp_path / "r", info={"model": "b", "data": "c"}, resume=True) as run:
        run.append([record(1)])
    again = Run.open(tmp_path / "r")
    assert again.info == {"model": "a", "data": "c"}
    assert (again.created, len(list(again.records()))) == (created, 2)


def test_resuming_what_is_not_there_creates_it(tmp_path: Path) -> None:
    assert Run.create(tmp_path / "r", resume=True).name == "r"


# Superseding and rewinding.


def test_a_later_record_of_the_same_key_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    same = record(0, variant={"a": 1, "b": 2}, index=3)
    with Run.create(tmp_path / "r") as run:
        run.append([same, record(1)])
        run.append([record(0, variant={"b": 2, "a": 1}, index=3, value=0.5, note="again")])
        assert [(r.step, r.value) for r in run.records()] == [(0, 0.5), (1, 1 / 7)]


@pytest.mark.parametrize(
    "change",
    [
        {"step": 9},
        {"site": "embed"},
        {"metric": "two_nn"},
        {"version": 2},
        {"tokens": "no-sink"},
        {"index": 0},
        {"variant": {"null": "haar"}},
    ],
)
def test_records_that_differ_in_any_part_of_the_key_stand_side_by_side(tmp_path: Path, change: dict[str, Any]) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(), record(**change)])
        assert len(list(run.records())) == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_rewind_forgets_exactly_what_a_slow_replay_forgets(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[bool, int]]
) -> None:
    replay: dict[int, float] = {}
    with Run.create(tmp_path_factory.mktemp("runs") / "r") as run:
        for time_, (rewinds, step) in enumerate(events):
            if rewinds:
                run.rewind(step)
                replay = {s: value for s, value in replay.items() if s < step}
            else:
                run.append([record(step, value=time_)])
                replay[step] = time_
        assert {r.step: r.value for r in run.records()} == replay


def test_a_rewind_also_forgets_statistics_and_replicates(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        for step in (0, 10, 20):
            run.append([record(step)], [[1.0, 2.0]])
            run.save_statistics(step, "embed", "all", {"n": np.ones(3)})
        run.rewind(10)
        assert [address[0] for address in run.statistics()] == [0]
        assert list(run.replicates()) == [record_key(record(0))]


def test_many_rewinds_in_a_crafted_run_take_linear_time(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(i) for i in range(3000)])
    with (tmp_path / "r" / "records.jsonl").open("a") as file:
        file.write('{"rewind":5000}\n' * 100_000)  # replayed one by one: 3e8 comparisons
    assert len(list(run.records())) == 3000


# Replicates.


def test_replicates_come_back_by_the_key_of_their_record(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(0), record(1), record(2)], [[0.1, -0.2], None, [0.0]])
        assert run.replicates() == {record_key(record(0)): (0.1, -0.2), record_key(record(2)): (0.0,)}


def test_sizes_of_blocks_are_stored_with_their_replicates_if_they_are_known(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(0), record(1)], [Replicates([0.1, 0.2], sizes=[7, 5]), [0.3, 0.4]])
    stored = Run.open(tmp_path / "r").replicates()
    assert [(tuple(each), each.sizes) for each in stored.values()] == [((0.1, 0.2), (7, 5)), ((0.3, 0.4), None)]
    assert pickle.loads(pickle.dumps(stored)) == stored
    assert pickle.loads(pickle.dumps(stored[record_key(record(0))])).sizes == (7, 5)


def test_replicates_of_a_superseded_record_do_not_stick_to_its_successor(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(0, value=1.0)], [[0.9, 1.1]])
        run.append([record(0, value=2.0)])
        assert run.replicates() == {}
        run.append([record(0, value=2.0)], [[1.9, 2.1]])
        assert run.replicates() == {record_key(record(0)): (1.9, 2.1)}


def test_replicates_that_do_not_fit_their_records_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(InputError, match="1 replicates for 2 records"):
            run.append([record(0), record(1)], [[1.0]])
        with pytest.raises(InputError, match="no value itself"):
            run.append([record(0, value=None)], [[1.0]])
        with pytest.raises(InputError, match="finite"):
            run.append([record(0)], [[math.nan]])
        assert list(run.records()) == []


# Tables.


def full_run(path: Path) -> Run:
    with Run.create(path, info={"model": "gpt2"}) as run:
        run.append(
            [
                Record("embed", "isoscore", 0.1 + 0.2, n=7, error=1e-300, error_kind="jackknife-16", null=-0.0),
                Record("resid.1", "gride", None, index=4, variant={"b": 1, "a": "é"}, note='too few, "rows"\nhere'),
                Record("resid.1", "gride", 1e300, index=1 << 62, step=-1, version=3, tokens="no-sink"),
            ]
        )
    return run


def test_the_frame_has_the_columns_of_a_record_and_their_types(tmp_path: Path) -> None:
    frame = full_run(tmp_path / "r").frame()
    assert tuple(frame.columns) == COLUMNS
    assert {name: str(frame[name].dtype) for name in ("step", "version", "index", "n", "value", "error", "null")} == {
        **dict.fromkeys(("step", "version"), "int64"),
        **dict.fromkeys(("index", "n"), "Int64"),
        **dict.fromkeys(("value", "error", "null"), "float64"),
    }
    assert frame["variant"].tolist() == ["{}", '{"a":"é","b":1}', "{}"]
    assert frame["value"].tolist()[::2] == [0.1 + 0.2, 1e300]
    assert frame["value"].isna().tolist() == [False, True, False]
    assert frame["index"].tolist() == [pd.NA, 4, 1 << 62]
    assert frame["note"].isna().tolist() == [True, False, True]


def test_the_frame_of_an_empty_run_has_the_same_columns_and_types(tmp_path: Path) -> None:
    with Run.create(tmp_path / "empty") as run:
        empty = run.frame()
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full_run(tmp_path / "full").frame().dtypes.to_dict()


def test_parquet_comes_back_as_the_frame_and_carries_run_json(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = full_run(tmp_path / "r")
    path = run.export(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(path), run.frame())
    assert json.loads(pq.read_schema(path).metadata[b"anisoscope"]) == json.loads(
        (tmp_path / "r" / "run.json").read_text()
    )


def test_csv_comes_back_as_the_frame(tmp_path: Path) -> None:
    run = full_run(tmp_path / "r")
    with run.export(tmp_path / "out.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, expected in zip(rows, run.records(), strict=True):
        values = {**expected.to_json(), "variant": json.dumps(expected.variant, ensure_ascii=False, sort_keys=True)}
        assert float(row["value"] or "nan") == pytest.approx(values["value"] or math.nan, rel=0, abs=0, nan_ok=True)
        assert row["variant"] == values["variant"].replace(" ", "")
        for name in ("run", "step", "site", "metric", "version", "tokens", "index", "n", "note", "error_kind"):
            assert row[name] == ("" if values[name] is None else str(values[name]))


def test_jsonl_comes_back_as_the_records_without_superseded_ones(tmp_path: Path) -> None:
    run = full_run(tmp_path / "r")
    with Run.create(tmp_path / "r", resume=True) as again:
        again.append([Record("embed", "isoscore", 0.5)])
    lines = run.export(tmp_path / "out.jsonl").read_text().splitlines()
    assert [Record.from_json(json.loads(line)) for line in lines] == list(run.records())
    assert len(lines) == 3


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.parquet, \.csv, \.jsonl"):
        full_run(tmp_path / "r").export(tmp_path / "out.xlsx")


def test_an_export_onto_the_runs_own_records_is_refused(tmp_path: Path) -> None:
    run = full_run(tmp_path / "r")
    with pytest.raises(InputError, match="file of the run itself"):
        run.export(tmp_path / "r" / "records.jsonl")
    assert len(list(run.records())) == 3


# Statistics.


def test_statistics_come_back_equal_under_their_address(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "scatter": np.arange(12.0).reshape(3, 4).T,  # not contiguous
        "big_endian": np.arange(3, dtype=">f4"),
        "n": np.array(7, dtype=np.int64),  # a number: no dimensions
        "scalar": np.float32(2.5),
        "half": np.ones((0, 5), dtype=np.float16),
        "flags": np.array([True, False]),
    }
    with Run.create(tmp_path / "r") as run:
        run.save_statistics(3, "resid.7", "all", arrays)
        run.save_statistics(3, "resid.7", "all", {"n": np.zeros(1)}, block=0)
    found = Run.open(tmp_path / "r").load_statistics(3, "resid.7", "all")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == np.shape(array)
        assert found[name].dtype == array.dtype.newbyteorder("=")


def test_statistics_are_listed_by_step_then_in_the_order_of_a_forward_pass(tmp_path: Path) -> None:
    addresses = [
        (-1, "embed", "all", None),
        (0, "embed", "all", None),
        (0, "resid.9", "all", None),
        (0, "resid.9", "all", 2),
        (0, "resid.9", "all", 10),
        (0, "resid.9", "no-sink", None),
        (0, "resid.10", "all", None),
        (10, "embed", "all", None),
    ]
    with Run.create(tmp_path / "r") as run:
        for step, site, tokens, block in reversed(addresses):
            run.save_statistics(step, site, tokens, {"x": np.zeros(1)}, block)
        assert run.statistics() == addresses


hostile_names = st.one_of(
    st.sampled_from(["../..", "/etc/passwd", "~", "a~b", "%2e", "A", "a", "\0", "CON", "."]), texts
)


@given(st.lists(st.tuples(hostile_names, hostile_names.filter(bool), st.none() | st.integers(0, 99)), max_size=5))
@settings(max_examples=60, deadline=None)
def test_statistics_of_any_name_stay_in_their_folder_and_apart(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str, int | None]]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    addresses = {(0, f"weight.x{name}", tokens, block) for name, tokens, block in names}
    with Run.create(root / "r") as run:
        for i, (step, site, tokens, block) in enumerate(sorted(addresses, key=repr)):
            run.save_statistics(step, site, tokens, {"i": np.array(i)}, block)
        for i, (step, site, tokens, block) in enumerate(sorted(addresses, key=repr)):
            assert run.load_statistics(step, site, tokens, block)["i"] == i
        assert set(run.statistics()) == addresses
    files = [path for path in root.rglob("*") if path.suffix == ".safetensors"]
    assert {path.parent for path in files} <= {root / "r" / "stats" / "0"}
    # Also on a disk that ignores case.
    assert len({path.name.lower() for path in files}) == len(addresses)


def test_statistics_of_names_that_differ_in_case_have_files_that_differ_without_it(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        for site in ("weight.a", "weight.A"):
            run.save_statistics(0, site, "all", {"x": np.zeros(1)})
    assert len({name.lower() for name in os.listdir(tmp_path / "r" / "stats" / "0")}) == 2


def test_files_of_strangers_among_the_statistics_are_left_out(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})
        for name in ("embed~%61ll.safetensors", "nonsense~all.safetensors", "x", ".embed~all.1.tmp", "embed~all~٣"):
            (tmp_path / "r" / "stats" / "0" / name).write_bytes(b"")
        (tmp_path / "r" / "stats" / "notes").mkdir()
        assert run.statistics() == [(0, "embed", "all", None)]


def test_missing_statistics_say_so_and_broken_ones_too(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(StoreError, match="has no statistics of step 0, site embed, tokens all, block 3"):
            run.load_statistics(0, "embed", "all", 3)
        run.save_statistics(0, "embed", "all", {"x": np.zeros(100)})
        path = tmp_path / "r" / "stats" / "0" / "embed~all.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StoreError, match="not a file of statistics"):
            run.load_statistics(0, "embed", "all")


@pytest.mark.parametrize("array", [[1.0], np.array([None]), np.ones(2, dtype=complex), np.array(["a"]), object()])
def test_statistics_that_are_not_numpy_numbers_are_refused(tmp_path: Path, array: Any) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(InputError, match="numpy arrays of numbers, 'x' is"):
            run.save_statistics(0, "embed", "all", {"x": array})
        assert run.statistics() == []


def test_statistics_under_an_impossible_address_are_refused(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        bad: list[tuple[Any, str, str, Any]] = [
            ("..", "embed", "all", None),
            (True, "embed", "all", None),
            (0, "../x", "all", None),
            (0, "embed", "", None),
            (0, "embed", "all", -1),
            (0, "embed", "all", "x"),
            (0, "weight." + "x" * 300, "all", None),
            (0, "weight.\ud800", "all", None),
        ]
        for step, site, tokens, block in bad:
            with pytest.raises(InputError):
                run.save_statistics(step, site, tokens, {"x": np.zeros(1)}, block)
        for name in ("", "__metadata__"):
            with pytest.raises(InputError, match="cannot be called"):
                run.save_statistics(0, "embed", "all", {name: np.zeros(1)})


# Kills.


WRITER = """
import itertools, sys
from anisoscope.records import Record
from anisoscope.store.run import Run
with Run.create(sys.argv[1], resume=True) as run:
    first = 1 + max((r.step for r in run.records()), default=-1)
    for lot in itertools.count():
        steps = range(first + 40 * lot, first + 40 * lot + 40)
        records = [Record("resid.0", "isoscore", i / 7, step=i, note="x" * (i % 900)) for i in steps]
        run.append(records, [[float(i)] for i in steps])
        print(steps[-1], flush=True)  # this lot was reported as done
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_prefix_and_the_next_goes_on(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(10):
        writer = python(WRITER, tmp_path / "r")
        assert writer.stdout is not None
        writer.stdout.readline()  # it writes now
        time.sleep(chance.uniform(0, 0.05))
        writer.kill()
        promised = [int(line) for line in writer.communicate()[0].splitlines()]
        run = Run.open(tmp_path / "r")
        steps = [r.step for r in run.records()]
        assert steps == list(range(len(steps)))
        assert all(step < len(steps) for step in promised)
        assert set(run.replicates()) == {record_key(r) for r in run.records()}


def test_a_file_cut_at_any_byte_gives_its_whole_lines_and_takes_the_next_append(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(i, note="é" * i) for i in range(4)])
    path = tmp_path / "r" / "records.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        assert [r.step for r in run.records()] == list(range(complete))
        if cut % 37 == 0:
            with Run.create(tmp_path / "r", resume=True) as again:
                again.append([record(9)])
            assert [r.step for r in run.records()] == [*range(complete), 9]


def test_a_torn_tail_longer_than_a_block_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_CHUNK", 64)
    with Run.create(tmp_path / "r") as run:
        run.append([record(0), record(1)])
        with (tmp_path / "r" / "records.jsonl").open("a") as file:
            file.write("{" + "x" * 1000)
        assert [r.step for r in run.records()] == [0, 1]
        run.append([record(2)])
        assert [r.step for r in run.records()] == [0, 1, 2]
        assert (tmp_path / "r" / "records.jsonl").read_bytes().endswith(b"}\n")


def test_a_kill_while_run_json_is_replaced_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with Run.create(tmp_path / "r", info={"a": 1}) as run:
        monkeypatch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            run.update_info(a=2)
        assert run.info == Run.open(tmp_path / "r").info == {"a": 1}
    assert not list((tmp_path / "r").glob("*.tmp"))


def test_a_run_killed_before_its_run_json_can_be_created_again(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    for name in ("lock", ".run.1.tmp"):
        (tmp_path / "r" / name).write_text("1")
    with Run.create(tmp_path / "r") as run:
        run.append([record()])


# One writer.


def test_a_second_writer_in_another_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    writer = python(
        """
        import sys
        from anisoscope.store.run import Run
        with Run.create(sys.argv[1]) as run:
            print("open", flush=True)
            sys.stdin.read()
        """,
        tmp_path / "r",
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"is being written by process {writer.pid}\b"):
            Run.create(tmp_path / "r", resume=True)
        assert list(Run.open(tmp_path / "r").records()) == []  # readers are let in
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    with Run.create(tmp_path / "r", resume=True) as run:  # the lock died with its holder
        run.append([record()])


def test_a_second_writer_in_the_same_process_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    first = Run.create(tmp_path / "r")
    with pytest.raises(StoreError, match=rf"process {os.getpid()}\b"):
        Run.create(tmp_path / "r", resume=True)
    first.append([record(0)])  # the refusal did not cost the first its lock
    first.close()
    first.close()
    with Run.create(tmp_path / "r", resume=True) as second:
        with pytest.raises(StoreError, match="open for reading"):
            first.append([record(1)])
        second.append([record(2)])


def test_a_forgotten_writer_gives_up_its_lock(tmp_path: Path) -> None:
    forgotten = Run.create(tmp_path / "r")
    del forgotten
    Run.create(tmp_path / "r", resume=True).close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    Run.create(tmp_path / "r").close()
    run = Run.open(tmp_path / "r")
    writes: list[Callable[[], None]] = [
        lambda: run.append([record()]),
        lambda: run.rewind(0),
        lambda: run.update_info(a=1),
        lambda: run.save_statistics(0, "embed", "all", {}),
    ]
    for write in writes:
        with pytest.raises(StoreError, match=r"open for reading; write with Run\.create"):
            write()


def _append_in_fork(run: Run, answers: Any) -> None:
    try:
        run.append([record()])
        answers.put("written")
    except StoreError as error:
        answers.put(str(error))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_worker_cannot_write_and_does_not_break_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with Run.create(tmp_path / "r") as run:
        answers: Any = context.SimpleQueue()
        worker = context.Process(target=_append_in_fork, args=(run, answers))
        worker.start()
        assert "not from a fork" in answers.get()
        worker.join()
        with pytest.raises(StoreError, match="is being written"):
            Run.create(tmp_path / "r", resume=True)


# Places.


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    Run.create(tmp_path / "r").close()
    with pytest.raises(StoreError, match=r"is already a run\. Resume it"):
        Run.create(tmp_path / "r")


def test_a_folder_with_other_things_in_it_is_not_made_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for resume in (False, True):
        with pytest.raises(StoreError, match="not empty and not a run"):
            Run.create(tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_not_a_run_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("missing", "file", "."):
        with pytest.raises(StoreError, match="is not a run"):
            Run.open(tmp_path / name)
    with pytest.raises(StoreError, match="cannot create"):
        Run.create(tmp_path / "file")
    with pytest.raises(AnisoscopeError):
        Run.open("a\0b")


def test_a_run_cannot_have_the_name_of_a_path(tmp_path: Path) -> None:
    for name in ("..", "", "a/b", "a\\b", "a\nb"):
        with pytest.raises(InputError, match="cannot be the name of a run"):
            Run.create(tmp_path / "r", name=name)
    assert not (tmp_path / "r").exists()


def test_info_that_is_not_json_is_refused_and_the_old_stays(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r", info={"a": 1}) as run:
        for bad in (object(), math.nan, {1, 2}, "\ud800"):
            with pytest.raises(InputError, match="cannot be JSON"):
                run.update_info(a=bad)
        assert run.info == Run.open(tmp_path / "r").info == {"a": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 1.5}, "step is float, expected int"),
        ({"step": True}, "step is bool"),
        ({"n": np.int64(3)}, "n is int64, expected int or null"),
        ({"index": 1 << 63}, "index is beyond 64 bits"),
        ({"value": np.float32(1)}, "value is float32, expected float or int or null"),
        ({"site": "nowhere"}, "'nowhere' is not a site"),
        ({"variant": {"a": math.inf}}, "variant cannot be JSON"),
        ({"variant": {"a": np.zeros(2)}}, "variant cannot be JSON"),
        ({"note": "\ud800"}, "cannot be stored as JSON"),
    ],
)
def test_a_record_that_could_not_be_read_again_is_refused_whole(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with Run.create(tmp_path / "r") as run:
        with pytest.raises(InputError, match=message):
            run.append([record(0), record(1, **change), record(2)])
        assert list(run.records()) == []


def test_numbers_of_numpy_that_are_floats_are_welcome(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(value=np.float64(0.1), error=2)])
        assert [(r.value, type(r.value), type(r.error)) for r in run.records()] == [(0.1, float, float)]


# Disks.


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_is_one_clear_line_and_the_run_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Run.create(tmp_path / "r") as run:
        run.append([record(0)])
        with monkeypatch.context() as patch:
            patch.setattr(os, fails, full)
            with pytest.raises(StoreError, match=r"No space left.*free some space") as caught:
                run.append([record(1)])
        assert "\n" not in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match="No space left"):
                run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})
        assert run.statistics() == []
        assert [r.step for r in run.records()] == [0]
        run.append([record(2)])
        assert [r.step for r in run.records()] == [0, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_a_disk_that_takes_half_a_line_leaves_no_torn_line(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from anisoscope.errors import StoreError
        from anisoscope.records import Record
        from anisoscope.store.run import Run
        with Run.create(sys.argv[1]) as run:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                for i in range(100):
                    run.append([Record("embed", "isoscore", 0.5, step=i)])
            except StoreError as error:
                print(i, error)
        """
    out, err = python(code, tmp_path / "r").communicate()
    assert err == ""
    assert "cannot append to" in out
    assert (tmp_path / "r" / "records.jsonl").read_bytes().endswith(b"\n")
    assert [r.step for r in Run.open(tmp_path / "r").records()] == list(range(int(out.split()[0])))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_read_only_folder_is_readable_and_says_that_it_cannot_be_written() -> None:
    code = """
        import fcntl, filelock, os, tempfile  # the modules of the lock too: below, Python itself may be out of reach
        from pathlib import Path
        from anisoscope.errors import StoreError
        from anisoscope.records import Record
        from anisoscope.store.run import Run
        if os.getuid() == 0:
            os.setuid(65534)  # nothing is read-only for root
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r"
            with Run.create(path) as run:
                run.append([Record("embed", "isoscore", 0.5)])
            os.chmod(path, 0o555)
            for file in path.iterdir():
                os.chmod(file, 0o444)
            assert len(list(Run.open(path).records())) == 1
            for attempt in (lambda: Run.create(path, resume=True), lambda: Run.create(path / "s")):
                try:
                    attempt()
                except StoreError as error:
                    print(error)
            os.chmod(path, 0o755)
        """
    out, err = python(code).communicate()
    assert err == ""
    assert len(out.splitlines()) == 2
    assert all("Permission denied; choose a folder you may use" in line for line in out.splitlines())


# Hostile folders.


def run_with(tmp_path: Path, name: str, data: bytes) -> Run:
    with Run.create(tmp_path / "r") as run:
        run.append([record(0)], [[1.0]])
    with (tmp_path / "r" / name).open("ab") as file:
        file.write(data)
    return run


GOOD = json.dumps(record(1).to_json())
BROKEN = {
    "no JSON": "nonsense",
    "empty": "",
    "cut": GOOD[:50],
    "two on a line": GOOD + "," + GOOD,
    "a list": "[1]",
    "a number": "1",
    "NaN": GOOD.replace("0.14285714285714285", "NaN"),
    "infinity": GOOD.replace("0.14285714285714285", "1e999"),
    "huge": GOOD.replace("0.14285714285714285", "1" + "0" * 400),
    "too many digits": GOOD.replace('"n": 100', '"n": ' + "1" * 5000),
    "beyond 64 bits": GOOD.replace('"n": 100', '"n": 9223372036854775808'),
    "text for a number": GOOD.replace('"n": 100', '"n": "100"'),
    "number for a text": GOOD.replace('"isoscore"', "3"),
    "missing key": GOOD.replace('"n": 100, ', ""),
    "unknown key": GOOD.replace('"n"', '"m"'),
    "no site": GOOD.replace("resid.0", "../.."),
    "half a character": GOOD.replace("isoscore", "\\ud800"),
    "deep": GOOD.replace("{}", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a rewind to nowhere": '{"rewind": "x"}',
    "a rewind with more": '{"rewind": 1, "step": 2}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_names_the_file_the_line_and_the_remedy(tmp_path: Path, name: str) -> None:
    run = run_with(tmp_path, "records.jsonl", f"{GOOD}\n{BROKEN[name]}\n{GOOD}\n".encode())
    reads: list[Callable[[], object]] = [lambda: list(run.records()), run.frame, run.sites, run.metrics, run.replicates]
    for read in reads:
        with pytest.raises(StoreError, match=r"records\.jsonl, line 3: .*; delete that line") as caught:
            read()
        assert len(str(caught.value)) < 6000


def test_a_broken_line_far_down_is_counted_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path, "records.jsonl", f"{GOOD}\n".encode() * 20 + b"broken\n" + f"{GOOD}\n".encode() * 5)
    for size in (64, 700, 1 << 18):  # less than a line, a few lines, all
        monkeypatch.setattr(disk, "_CHUNK", size)
        with pytest.raises(StoreError, match="line 22:"):
            list(run.records())


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="line 2"):
        list(run_with(tmp_path, "records.jsonl", b"\xff\xfe\n").records())


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    run = run_with(tmp_path, "records.jsonl", b"")
    with (tmp_path / "r" / "records.jsonl").open("ab") as file:
        file.truncate(100 << 30)  # a hole of 100 GB
    with pytest.raises(StoreError, match="line 2: longer than"):
        list(run.records())


@pytest.mark.parametrize(
    "line",
    [
        '{"replicates": [1]}',
        '{"value": 1}',
        "[]",
        GOOD[:-1] + ', "replicates": [NaN]}',
        GOOD[:-1] + ', "replicates": [1, 2], "sizes": [3]}',
        GOOD[:-1] + ', "replicates": [1, 2], "sizes": [3, 0]}',
        GOOD,
    ],
)
def test_broken_replicates_name_their_line(tmp_path: Path, line: str) -> None:
    run = run_with(tmp_path, "replicates.jsonl", f"{line}\n".encode())
    with pytest.raises(StoreError, match=r"replicates\.jsonl, line 2"):
        run.replicates()


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "name": "r", "created": "", "anisoscope": "", "command": null, "info": []}',
        '{"format": 1, "name": "../../x", "created": "", "anisoscope": "", "command": null, "info": {}}',
        '{"format": 1, "name": 3, "created": "", "anisoscope": "", "command": null, "info": {}}',
        '{"format": 1, "name": "r", "created": "", "anisoscope": "", "command": null, "info": {"a": NaN}}',
        "[" * 100_000,
        " " * (17 << 20),
    ],
)
def test_a_run_json_that_is_none_is_a_store_error(tmp_path: Path, text: str) -> None:
    Run.create(tmp_path / "r").close()
    (tmp_path / "r" / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        Run.open(tmp_path / "r")
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        Run.create(tmp_path / "r", resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "replicates.jsonl", "stats", "lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_links_pipes_and_folders_in_place_of_files_are_refused_without_hanging(
    tmp_path: Path, name: str, kind: str
) -> None:
    Run.create(tmp_path / "r").close()
    precious = tmp_path / ("precious" if name != "stats" else "folder")
    precious.write_text("precious") if name != "stats" else precious.mkdir()
    place = tmp_path / "r" / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir() if name != "stats" else place.write_text("")
    else:
        place.symlink_to(precious if kind == "link" else tmp_path / "nothing")

    def use() -> None:
        with Run.create(tmp_path / "r", resume=True) as run:
            run.append([record()], [[1.0]])
            run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})

    with pytest.raises(StoreError):
        use()
    if name in ("records.jsonl", "replicates.jsonl"):
        with pytest.raises(StoreError):
            Run.open(tmp_path / "r").replicates()
    if name == "stats":
        run = Run.open(tmp_path / "r")
        with pytest.raises(StoreError):
            run.statistics()
        with pytest.raises(StoreError):
            run.load_statistics(0, "embed", "all")
        assert not precious.exists() or list(precious.iterdir()) == []
    else:
        assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_to_a_whole_run_is_welcome(tmp_path: Path) -> None:
    full_run(tmp_path / "r")
    (tmp_path / "latest").symlink_to(tmp_path / "r")
    assert len(list(Run.open(tmp_path / "latest").records())) == 3


@given(st.binary(max_size=60), st.integers(0, 1 << 16), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_damage_gives_records_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int, overwrite: bool
) -> None:
    path = tmp_path_factory.mktemp("runs") / "r"
    run = full_run(path)
    for name in ("records.jsonl", "run.json"):
        data = (path / name).read_bytes()
        at = place % len(data)
        (path / name).write_bytes(data[:at] + noise + data[at + (len(noise) if overwrite else 0) :])
    for use in (lambda: Run.open(path), lambda: list(run.records()), run.frame):
        with suppress(StoreError):
            use()


def test_the_store_works_without_torch(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        import numpy
        from anisoscope.records import Record
        from anisoscope.store.run import Run
        with Run.create(sys.argv[1]) as run:
            run.append([Record("embed", "isoscore", 0.5)])
            run.save_statistics(0, "embed", "all", {"x": numpy.zeros(2)})
            run.load_statistics(0, "embed", "all")
            run.export(sys.argv[1] + ".parquet")
        """
    out, err = python(code, tmp_path / "r").communicate()
    assert (out, err) == ("", "")


def test_fifty_thousand_records_come_back_in_order(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        for first in range(0, 50_000, 10_000):
            run.append([record(i, index=i % 3) for i in range(first, first + 10_000)])
    assert run.frame()["step"].tolist() == list(range(50_000))
    assert json.loads((tmp_path / "r" / "run.json").read_text())["format"] == FORMAT
