"""Which statistics of a measured model stay in its run folder: all, or those that are small."""

from __future__ import annotations

from anisoscope.stats.cloud import Cloud, Stats, to_arrays
from anisoscope.stats.registry import COLLECTED, SUMS
from anisoscope.stats.scratch import bytes_of

KEPT = 8 << 20  # bytes of statistics that a run keeps unless all of them are requested


def small_statistics(cloud: Cloud, limit: int) -> Stats:
    """Return the statistics of a cloud that fit into `limit` bytes: all of them, or as many as possible.

    Rows of largest norm and first tokens of windows are stored separately from the sums. If not everything fits, the
    sums that remain include these rows, so that a metric of them has the same value.
    """
    if _size(cloud.stats) <= limit:
        return cloud.stats
    kinds = [name for name in cloud.stats if name != "Extremes" and not name.startswith("first.")]
    whole: Stats = {name: cloud.get(COLLECTED[name]) if name in SUMS else cloud.stats[name] for name in kinds}
    kept: Stats = {}
    for name in sorted(whole, key=lambda name: _size({name: whole[name]})):
        if _size({**kept, name: whole[name]}) > limit:
            break
        kept[name] = whole[name]
    return kept


def _size(stats: Stats) -> int:
    return bytes_of(to_arrays(stats).values())
