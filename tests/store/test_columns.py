"""Runs as columns: the quick reading of a run's own lines gives what the checked reading of any line gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import StoreError
from anisoscope.records import COLUMNS, Record
from anisoscope.store.columns import Columns
from anisoscope.store.run import Run, record_key
from tests.run_samples import any_record


def spaced(line: bytes) -> bytes:
    """The same JSON with other blanks: no longer as a run writes it, so it takes the checked way."""
    return json.dumps(json.loads(line), ensure_ascii=False).encode()


@given(st.lists(any_record | st.integers(-3, 3), max_size=12))
@settings(max_examples=80, deadline=None)
def test_lines_of_a_run_and_reformatted_lines_give_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, events: list[Record | int]
) -> None:
    path = tmp_path_factory.mktemp("runs") / "r"
    replay: dict[tuple[Any, ...], Record | None] = {}
    with Run.create(path) as run:
        for event in events:
            if isinstance(event, Record):
                run.append([event])
                replay[record_key(event)] = event
            else:
                run.rewind(event)
                replay = {key: None if old is None or old.step >= event else old for key, old in replay.items()}
    quick, frame = list(run.records()), run.table()
    assert quick == [each for each in replay.values() if each is not None]
    file = path / "records.jsonl"
    if file.exists():
        file.write_bytes(b"".join(spaced(line) + b"\n" for line in file.read_bytes().split(b"\n")[:-1]))
    assert list(run.records()) == quick
    assert run.table().equals(frame)


def test_lines_that_a_run_writes_are_read_by_the_regular_expression(tmp_path: Path) -> None:
    variant = {"basis": "frozen", "rank": 8, "share": 0.25, "ends": [1, 2]}
    with Run.create(tmp_path / "r") as run:
        run.append(
            [
                Record("resid.3", "isoscore", 1e-300, step=7, n=4096, error=0.5, error_kind="jackknife-16-documents"),
                Record("grad.resid.3", "gradient_energy", -0.0, index=32, variant=variant, null=5e-324),
                Record("weight.lm_head", "two_nn", None, note="zu wenig Zeilen: 3 < 4 – später"),
            ]
        )
    lines = (tmp_path / "r" / "records.jsonl").read_bytes().split(b"\n")[:-1]
    columns = Columns()
    assert columns.add_lines(lines)
    assert list(columns.table().records()) == list(run.records())
    assert np.signbit(columns.table().numbers["value"][1])


LINE = json.dumps(Record("embed", "isoscore", 0.5, run="r", n=3).to_json(), separators=(",", ":"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"value":0.5', '"value":1e999'),
        ('"value":0.5', '"value":NaN'),
        ('"value":0.5', '"value":"0.5"'),
        ('"step":0', '"step":0.0'),
        ('"step":0', '"step":9223372036854775808'),
        ('"step":0', '"step":true'),
        ('"site":"embed"', '"site":"nowhere"'),
        ('"variant":{}', '"variant":{"a":NaN}'),
        ('"variant":{}', '"variant":{"a"}'),
        ('"variant":{}', '"variant":' + '{"a":' + "[" * 5000 + "]" * 5000 + "}"),
        ('"n":3', '"n":3,"more":1'),
        (',"note":null', ""),
    ],
)
def test_a_line_that_is_not_a_record_is_reported_with_its_number(tmp_path: Path, old: str, new: str) -> None:
    assert old in LINE
    with Run.create(tmp_path / "r"):
        pass
    (tmp_path / "r" / "records.jsonl").write_text("".join(f"{each}\n" for each in (LINE, LINE.replace(old, new), LINE)))
    with pytest.raises(StoreError, match="line 2"):
        Run.open(tmp_path / "r").table()


def test_numbers_in_another_notation_are_the_same_numbers(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        pass
    others = [LINE.replace('"step":0', '"step":-0'), LINE.replace('"value":0.5', '"value":5E-1')]
    (tmp_path / "r" / "records.jsonl").write_text("".join(f"{each}\n" for each in (LINE, *others)))
    [record] = run.records()  # one key, thrice
    assert (record.step, record.value) == (0, 0.5)


def test_many_different_keys_stay_different(tmp_path: Path) -> None:
    """As many values in every column as would overflow one number for all of them."""
    count = 3000
    records = [
        Record(f"in.{i}", f"m{i}", i / 7, step=i, version=i, tokens=f"t{i}", index=i, variant={"v": i})
        for i in range(count)
    ]
    with Run.create(tmp_path / "r") as run:
        run.append(records)
        run.append(records[::3])
        assert len(run.table()) == count
        assert tuple(run.table().columns) == COLUMNS
        assert [record.step for record in run.records()] == list(range(count))
