"""Concepts over a training, from its records: when each was born and died, how far it turned, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.section_tables import SectionTable
from anisoscope.report.sentences import number
from anisoscope.report.tables import Row

_NO_WORDS = "–"


@dataclass(frozen=True)
class ConceptLife:
    """One concept of one site.

    Attributes:
        site: The site.
        layer: Its position on the axis of layers.
        number: The concept's number at this site.
        words: Its typical tokens when it was last found.
        born: The step at which it was first found.
        died: The first due step that did not find it; None if the last one found it.
        drift: Degrees between its direction at birth and when it was last found; None if it was found once.
        shares: (step, share in the rows) at each due step that found it.
    """

    site: str
    layer: float | None
    number: int
    words: str
    born: int
    died: int | None
    drift: float | None
    shares: Sequence[tuple[int, float]]

    @property
    def label(self) -> str:
        """The number and the words, as one line."""
        return f"{self.number}  {self.words}"


def concept_lives(run: ReportedRun) -> list[ConceptLife]:
    """The concepts of a run, by site and number; none if it did not follow concepts."""
    due: dict[str, list[int]] = {}
    for row in run.every_row("concepts_born"):
        due.setdefault(row["site"], []).append(row["step"])
    drifts = {
        (row["site"], row["index"], row["step"]): row["value"]
        for row in run.every_row("concept_drift")
        if row.get("v_since") == "birth"
    }
    by_concept: dict[tuple[str, int], list[Row]] = {}
    for row in run.every_row("concept_share"):
        if row["value"] is not None and row["index"] is not None:
            by_concept.setdefault((row["site"], row["index"]), []).append(row)
    lives = [_life(rows, due.get(site, ()), drifts) for (site, _), rows in by_concept.items()]
    return sorted(lives, key=lambda life: (-1.0 if life.layer is None else life.layer, life.number))


def _life(rows: Sequence[Row], due: Sequence[int], drifts: dict[tuple[str, int, int], float]) -> ConceptLife:
    rows = sorted(rows, key=lambda row: row["step"])
    first, last = rows[0], rows[-1]
    site, index = first["site"], first["index"]
    died = min((step for step in due if step > last["step"]), default=None)
    words = str(last["note"]) if isinstance(last["note"], str) else _NO_WORDS
    drift = drifts.get((site, index, last["step"]))
    shares = [(row["step"], row["value"]) for row in rows]
    return ConceptLife(site, first["layer"], index, words, first["step"], died, drift, shares)


def concept_tables(lives: Sequence[ConceptLife], shown: str) -> list[SectionTable]:
    """The concepts of one site that live or were found more than once, and all others folded.

    Args:
        lives: The concepts of a run.
        shown: The site whose concepts are shown at once.
    """
    heads = ["site", "number", "concept in words", "born at step", "died at step", "drift since birth", "share"]
    caption = (
        "Concepts of semi-NMF, matched from one due step to the next. Words: the tokens that use the concept most. "
        "Drift: the angle by which its direction has turned. Share: of the squared length of all concepts, when it was "
        "last found."
    )
    main = [life for life in lives if life.site == shown and (life.died is None or len(life.shares) > 1)]
    here = [_cells(life) for life in main]
    rest = [_cells(life) for life in lives if life not in main]
    tables = [SectionTable(heads, here, caption, wraps=(2,))] if here else []
    if rest:
        tables.append(
            SectionTable(
                heads, rest, "Concepts of other layers, and those that were found once", folded=True, wraps=(2,)
            )
        )
    return tables


def _cells(life: ConceptLife) -> list[str]:
    return [
        life.site,
        str(life.number),
        life.words,
        f"{life.born:,}",
        "lives" if life.died is None else f"{life.died:,}",
        "" if life.drift is None else f"{life.drift:.0f}°",
        number(life.shares[-1][1], percent=True),
    ]


def concepts_sentence(lives: Sequence[ConceptLife], shown: str) -> str:
    """How many concepts of a site live, were born and died.

    Args:
        lives: The concepts of a run.
        shown: The site.
    """
    here = [life for life in lives if life.site == shown]
    start = min(life.born for life in here)
    died = sum(life.died is not None for life in here)
    born = sum(life.born > start for life in here)
    alive = len(here) - died
    living = f"{alive} concept{'s live' if alive != 1 else ' lives'} at the end"
    return f"At {shown}, {living}; {born} {'was' if born == 1 else 'were'} born after step {start:,}, {died} died."
