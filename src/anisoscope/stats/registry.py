"""The kinds of statistics: which are collected from rows, which are derived from others, and from what.

A *collected* statistic is made from batches of rows and added up. It must be listed in `COLLECTED`, so that a file can
name it. A *derived* statistic is made from collected ones after the last batch. Its class declares all there is to
know about it:

- `sources`, a class variable: the collected statistics that it is made from;
- `derive(cloud)`, a class method: how it is made;
- `without_block(blocks)`, optional: it can leave out blocks by itself, and is then not made again for each block.

`Cloud.get` returns statistics of both kinds.
"""

from __future__ import annotations

from typing import Any

from anisoscope.stats.directions import CentredDirections, Directions, UnitSquares
from anisoscope.stats.documents import Documents
from anisoscope.stats.entries import Entries
from anisoscope.stats.head_norms import HeadNorms
from anisoscope.stats.head_scores import Attention
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.moments import Moments
from anisoscope.stats.partition import Partition
from anisoscope.stats.router_sums import RouterSums
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.sample import Extremes, Sample
from anisoscope.stats.sequence_spectra import SequenceSpectra
from anisoscope.stats.token_steps import TokenSteps
from anisoscope.stats.writes import Writes

_KINDS: tuple[type, ...] = (
    Moments,
    Directions,
    UnitSquares,
    Norms,
    Entries,
    Documents,
    CentredDirections,
    Partition,
    Sample,
    Extremes,
    Attention,
    HeadSums,
    HeadNorms,
    RouterSums,
    Writes,
    TokenSteps,
    SequenceSpectra,
)
COLLECTED: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}  # by the name that files use
SUMS = ("Moments", "Directions", "UnitSquares")  # the extremes are added to these last, so that they can be left out
PREFIXES = ("", "first.")  # of sums and extremes: first tokens of windows are stored separately
# cannot leave out single tokens: clouds without some tokens have none of these
UNFORGETTING = ("Norms", "Entries", "Writes", "TokenSteps", "SequenceSpectra")
SECOND_PASS = ("CentredDirections", "Partition")  # need the Moments of all rows before they read the first one


def is_derived(kind: type) -> bool:
    """Return whether statistics of this kind are made from other statistics instead of rows."""
    return hasattr(kind, "derive")


def leaves_blocks_out(kind: type) -> bool:
    """Return whether a derived statistic can leave out blocks by itself."""
    return is_derived(kind) and hasattr(kind, "without_block")


def sources(kind: Any) -> tuple[str, ...]:
    """Return the names of the statistics that must be collected for this kind.

    >>> sources(Moments)
    ('Moments',)
    """
    return tuple(source.__name__ for source in kind.sources) if is_derived(kind) else (kind.__name__,)
