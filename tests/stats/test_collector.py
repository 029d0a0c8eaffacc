"""What a collector holds in memory is bounded, and where its statistics are stored does not change them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anisoscope.stats.cloud import Cloud, to_arrays
from anisoscope.stats.collector import Collector
from anisoscope.stats.rows import Rows, token_table
from anisoscope.stats.scratch import Room, bytes_of

NAMES = ("Moments", "Directions", "Norms", "Documents", "Sample", "Extremes")
TIGHT = Room(blocks=0, open=0)


def batches(blocks: int = 9, rows: int = 40, d: int = 24) -> list[Rows]:
    x = torch.randn(blocks, rows, d, generator=torch.Generator().manual_seed(0))
    place = torch.arange(rows)
    return [
        Rows(x[b], token_table(torch.full((rows,), b), place, offset=place % 16, block=torch.full((rows,), b)))
        for b in range(blocks)
    ]


def collector(room: Room) -> Collector:
    new = Collector(NAMES, sample=50, extremes=4, blocks=4, sinks=True)
    new.room = room
    return new


def filled(room: Room, upto: int | None = None) -> Collector:
    new = collector(room)
    for rows in batches()[:upto]:
        new.add(rows)
    return new


def assert_same(a: Cloud, b: Cloud) -> None:
    assert [block.number for block in a.blocks] == [block.number for block in b.blocks]
    every = [[cloud.stats, *(block.load() for block in cloud.blocks)] for cloud in (a, b)]
    for one, other in zip(*every, strict=True):
        left, right = to_arrays(one), to_arrays(other)
        assert left.keys() == right.keys()
        for name, x in left.items():
            # a file holds a matrix by rows, memory may hold it by columns: products then round in another order,
            # by at most n·eps of the largest sum, n = 360 rows
            limit = 360 * 2.3e-16 * float(x.double().abs().max()) if x.numel() else 0.0
            assert torch.allclose(x.double(), right[name].double(), rtol=0, atol=limit), name


def test_what_is_stored_in_files_gives_the_same_statistics(tmp_path: Path) -> None:
    assert_same(filled(Room(blocks=0, open=0, parent=tmp_path)).finish(), filled(Room()).finish())
    assert not list(tmp_path.iterdir()), "the scratch folder is deleted with the cloud"


def test_a_collector_without_room_holds_nothing_between_batches() -> None:
    held = filled(TIGHT)
    arrays = [to_arrays(block.stats) for block in held._closed if isinstance(block.stats, dict)]
    assert not arrays
    assert held._open_bytes() == 0
    roomy = filled(Room())
    assert sum(bytes_of(to_arrays(block.stats).values()) for block in roomy._closed if isinstance(block.stats, dict))


@pytest.mark.parametrize("room", [TIGHT, Room()])
def test_a_saved_collector_continues_to_the_same_statistics(tmp_path: Path, room: Room) -> None:
    filled(room, upto=5).save(tmp_path / "saved")
    resumed = collector(room)
    resumed.load(tmp_path / "saved")
    for rows in batches()[5:]:
        resumed.add(rows)
    assert_same(resumed.finish(), filled(Room()).finish())


def test_saving_closed_blocks_takes_no_second_copy_on_the_disk(tmp_path: Path) -> None:
    held = filled(Room(blocks=0, open=0, parent=tmp_path), upto=5)
    for name in ("one", "two"):
        held.save(tmp_path / name)
    blocks = sorted((tmp_path / "two").glob("[0-9]*.safetensors"))
    assert len(blocks) > 2
    assert all(block.stat().st_nlink == 3 for block in blocks)  # in the scratch folder, and saved twice
    first = (tmp_path / "one" / "open.safetensors").read_bytes()
    held.add(batches()[5])
    assert (tmp_path / "one" / "open.safetensors").read_bytes() == first, "what is saved does not change any more"


@pytest.mark.parametrize("room", [TIGHT, Room()])
def test_a_copy_and_its_original_continue_by_themselves(room: Room) -> None:
    original = filled(room, upto=5)
    copied = original.copy()
    early = copied.finish()
    for rows in batches()[5:]:
        original.add(rows)
    assert_same(early, filled(Room(), upto=5).finish())
    assert_same(original.finish(), filled(Room()).finish())
