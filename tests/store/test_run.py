"""A run: what was appended is there, and at most one process writes."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import InputError, StoreError
from anisoscope.records import COLUMNS, Record, Replicates
from anisoscope.store.run import Run, record_key
from anisoscope.store.run_header import FORMAT
from benchmarks.long import long_run, look_of
from tests.run_samples import any_record, full_run, python, record


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


def test_resuming_a_missing_run_creates_it(tmp_path: Path) -> None:
    assert Run.create(tmp_path / "r", resume=True).name == "r"


def test_a_later_record_of_the_same_key_replaces_the_earlier_one(tmp_path: Path) -> None:
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
def test_records_that_differ_in_any_part_of_the_key_are_both_stored(tmp_path: Path, change: dict[str, Any]) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(), record(**change)])
        assert len(list(run.records())) == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_rewind_discards_exactly_what_a_slow_replay_discards(
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


def test_a_rewind_also_discards_statistics_and_replicates(tmp_path: Path) -> None:
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


def test_replicates_of_a_superseded_record_are_discarded(tmp_path: Path) -> None:
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


def test_the_frame_has_the_columns_of_a_record_and_their_types(tmp_path: Path) -> None:
    frame = full_run(tmp_path / "r").table()
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
        empty = run.table()
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full_run(tmp_path / "full").table().dtypes.to_dict()


def test_parquet_comes_back_as_the_frame_and_carries_run_json(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = full_run(tmp_path / "r")
    path = run.export(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(path), run.table())
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


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_csv_holds_no_formula(tmp_path: Path, text: str) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([Record("embed", "isoscore", -0.5, tokens=text, note=text, variant={text: text})])
    with run.export(tmp_path / "out.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert row["tokens"] == row["note"] == "'" + text
    assert row["value"] == "-0.5"  # a number is no formula
    assert not any(cell.startswith(tuple("=+@\t\r")) for cell in row.values())


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


def test_a_second_writer_in_another_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
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


def test_a_forgotten_writer_releases_its_lock(tmp_path: Path) -> None:
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
    assert run.table()["step"].tolist() == list(range(50_000))
    assert json.loads((tmp_path / "r" / "run.json").read_text())["format"] == FORMAT


def io_of_a_look(folder: Path, before: int) -> tuple[int, int]:
    """Bytes that appending one look reads and writes in a run that holds so many looks."""
    chance = random.Random(0)
    with Run.create(folder) as run:
        for step in range(before):
            run.append(look_of(step, bars=False, chance=chance))
        then = psutil.Process().io_counters()
        run.append(look_of(before, bars=False, chance=chance))
        run.update_info(tracker={"probes": before})
        now = psutil.Process().io_counters()
    return now.read_chars - then.read_chars, now.write_chars - then.write_chars


def test_what_a_look_reads_and_writes_does_not_grow_with_the_run(tmp_path: Path) -> None:
    few, many = io_of_a_look(tmp_path / "few", 3), io_of_a_look(tmp_path / "many", 60)
    assert many[0] <= few[0] + 300_000  # the end of the file is looked at, never the file
    assert many[1] == pytest.approx(few[1], rel=0.05)


def test_reading_a_run_takes_a_few_bytes_a_record(tmp_path: Path) -> None:
    count = 30_000
    run = long_run(tmp_path / "r", count)
    run.table()  # what is imported at first use
    tracemalloc.start()
    try:
        assert len(run.table()) == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400 * count  # an object per record took 900


def test_a_run_is_iterated_over_its_records_and_says_what_it_holds(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        assert list(run) == run.records() == []
        assert run  # also without records
        run.append([Record("embed", "isoscore", 0.5), Record("resid.0", "isoscore", 0.25)])
        assert list(run) == run.records() == list(Run.open(tmp_path / "r"))
    assert repr(run) == "<Run r: 2 records, 1 metric at 2 sites>"


def test_a_saved_run_holds_everything_under_its_new_name(tmp_path: Path) -> None:
    with Run.create(tmp_path / "first", info={"model": "gpt2"}, command="anisoscope measure") as run:
        records = [Record("embed", "isoscore", 0.5), Record("resid.0", "isoscore", 0.25)]
        run.append(records, [Replicates([0.4, 0.6], sizes=[3, 4]), Replicates([0.2, 0.3], sizes=[3, 4])])
        run.append([Record("embed", "isoscore", 0.75)])  # supersedes the first, whose replicates are of another value
        run.save_statistics(0, "embed", "all", {"x": np.arange(3.0)})
    saved = run.save(tmp_path / "second")
    assert [(r.run, r.site, r.value) for r in saved] == [("second", "embed", 0.75), ("second", "resid.0", 0.25)]
    assert (saved.info, saved.command, saved.name) == (run.info, run.command, "second")
    assert list(saved.replicates().values()) == list(run.replicates().values()) == [(0.2, 0.3)]
    assert saved.load_statistics(0, "embed", "all")["x"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(StoreError):
        run.save(tmp_path / "second")
