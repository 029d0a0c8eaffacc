"""Statistics summed over two real processes equal those of one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.multiprocessing.spawn import spawn

from anisoscope.distributed import add_over_ranks
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample
from tests.ranks import join_group, leave_group


def rows_of(rank: int) -> torch.Tensor:
    return torch.randn(300 + 57 * rank, 12, generator=torch.Generator().manual_seed(rank)).double() + rank


def work(rank: int, folder: str) -> None:
    join_group(Path(folder), rank, 3)
    rows = bare_rows(rows_of(rank), first=1000 * rank) if rank < 2 else None
    moments = add_over_ranks(None if rows is None else Moments.of(rows), Moments)
    directions = add_over_ranks(None if rows is None else Directions.of(rows), Directions)
    sample = add_over_ranks(None if rows is None else Sample.of(rows), Sample)
    assert moments is not None
    assert directions is not None
    assert sample is not None
    torch.save([moments.scatter, directions.unit, sample.x], Path(folder) / f"{rank}.pt")
    leave_group()


def test_statistics_add_over_ranks_even_where_one_rank_has_no_rows(tmp_path: Path) -> None:
    spawn(work, args=(str(tmp_path),), nprocs=3)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for mine in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(mine, ranks[0], strict=True))
    both = bare_rows(torch.cat((rows_of(0), rows_of(1))))
    torch.testing.assert_close(ranks[0][0], Moments.of(both).scatter)
    torch.testing.assert_close(ranks[0][1], Directions.of(both).unit)
    assert len(ranks[0][2]) == 657


def test_one_process_alone_keeps_its_statistic() -> None:
    alone = Moments.of(bare_rows(rows_of(0)))
    added = add_over_ranks(alone, Moments)
    assert added is not None
    assert torch.equal(added.scatter, alone.scatter)
