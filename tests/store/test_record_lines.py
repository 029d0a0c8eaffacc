"""Lines of a run: damaged ones are reported with their number, impossible records are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import InputError, StoreError
from anisoscope.store import files as disk
from anisoscope.store.run import Run
from tests.run_samples import full_run, record


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


def test_numpy_numbers_that_are_floats_are_accepted(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(value=np.float64(0.1), error=2)])
        assert [(r.value, type(r.value), type(r.error)) for r in run.records()] == [(0.1, float, float)]


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
def test_a_damaged_line_is_reported_with_file_number_and_remedy(tmp_path: Path, name: str) -> None:
    run = run_with(tmp_path, "records.jsonl", f"{GOOD}\n{BROKEN[name]}\n{GOOD}\n".encode())
    reads: list[Callable[[], object]] = [lambda: list(run.records()), run.frame, run.sites, run.metrics, run.replicates]
    for read in reads:
        with pytest.raises(StoreError, match=r"records\.jsonl, line 3: .*; delete that line") as caught:
            read()
        assert len(str(caught.value)) < 6000


def test_a_damaged_line_has_the_right_number_for_any_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path, "records.jsonl", f"{GOOD}\n".encode() * 20 + b"broken\n" + f"{GOOD}\n".encode() * 5)
    for size in (64, 700, 1 << 18):  # less than a line, a few lines, all
        monkeypatch.setattr(disk, "_CHUNK", size)
        with pytest.raises(StoreError, match="line 22:"):
            list(run.records())


def test_bytes_that_are_not_text_are_reported_with_their_line(tmp_path: Path) -> None:
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
def test_damaged_replicates_are_reported_with_their_line(tmp_path: Path, line: str) -> None:
    run = run_with(tmp_path, "replicates.jsonl", f"{line}\n".encode())
    with pytest.raises(StoreError, match=r"replicates\.jsonl, line 2"):
        run.replicates()


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
