"""Tools that the benchmarks share: figures with targets, alternating timing, tables, files and the chart."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import psutil
import torch

from anisoscope.report.theme import COLOURS, save_chart, themed
from benchmarks.neighbours import Row, environment

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
SCRATCH = ROOT / ".bench"  # environments of other tools, exchanged arrays, results of quick runs


@dataclass(frozen=True)
class Settings:
    """Settings of a benchmark; `quick` uses small clouds, whose ratios say little about the targets."""

    quick: bool
    threads: int

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 9

    @property
    def results(self) -> Path:
        """The folder for results; quick runs have a separate one."""
        return SCRATCH / "quick" if self.quick else RESULTS


@dataclass(frozen=True)
class Figure:
    """One measured value with its target; if there is no value, the note gives the reason."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_least: bool = False  # the target is a floor, not a ceiling
    rounds: Sequence[float] = ()
    note: str | None = None

    @property
    def share(self) -> float | None:
        """The used share of what the target allows: at most 1 if the target is reached.

        >>> Figure("time", 0.9, "×", target=1.2).share
        0.75
        """
        if self.value is None or not self.target:
            return None
        if self.at_least:
            return self.target / self.value if self.value > 0 else float("inf")
        return self.value / self.target

    @property
    def verdict(self) -> str:
        return "" if self.share is None else "reached" if self.share <= 1 else "MISSED"


@dataclass(frozen=True)
class Outcome:
    """The result of a benchmark: figures, and optionally a table of answers (row -> column -> cell)."""

    figures: list[Figure]
    answers: dict[str, dict[str, str]] = field(default_factory=dict)


def in_turn(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each job by round; the jobs take turns, so that other load affects all equally."""
    for job in jobs.values():
        job()  # set up buffers and caches before timing
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return times


def clock() -> float:
    """Return CPU seconds if there is one thread (wall-clock time would include other load), else wall-clock seconds."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def ratio(
    name: str, times: Mapping[str, Sequence[float]], over: str, under: str, target: float | None = None
) -> Figure:
    """Return the median over rounds of one job's time as a multiple of another's."""
    each = [a / b for a, b in zip(times[over], times[under], strict=True)]
    return Figure(name, statistics.median(each), "×", target, rounds=each)


def show(name: str, outcome: Outcome) -> None:
    print(f"\n{name}\n{markdown(outcome)}", flush=True)


def markdown(outcome: Outcome) -> str:
    """Return the figures and the answers as Markdown tables that are also readable as plain text."""
    lines = _table(
        ["figure", "value", "target", ""],
        [[f.name, _value(f), _target(f), f.verdict or f.note or ""] for f in outcome.figures],
    )
    if outcome.answers:
        columns = list(dict.fromkeys(column for cells in outcome.answers.values() for column in cells))
        rows = [[row, *(cells.get(column, "") for column in columns)] for row, cells in outcome.answers.items()]
        lines += ["", *_table(["data", *columns], rows)]
    return "\n".join(lines)


def save(name: str, outcome: Outcome, settings: Settings) -> None:
    """Write <name>.json: the figures and the environment."""
    settings.results.mkdir(parents=True, exist_ok=True)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": settings.quick,
        **environment(settings.threads),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "figures": [{**asdict(figure), "share": figure.share} for figure in outcome.figures],
        "answers": outcome.answers,
    }
    (settings.results / f"{name}.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def load(folder: Path) -> dict[str, Outcome]:
    """Load the stored outcomes of a folder, by benchmark."""
    outcomes = {}
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        if "rows" in report:  # the benchmark of the search, run on its own
            outcomes[path.stem] = Outcome([figure_of(Row(**row)) for row in report["rows"]])
            continue
        if "figures" not in report:  # raw points of a benchmark, not its figures
            continue
        figures = [Figure(**{k: v for k, v in each.items() if k != "share"}) for each in report["figures"]]
        outcomes[path.stem] = Outcome(figures, report["answers"])
    return outcomes


def figure_of(row: Row) -> Figure:
    """Convert a row of the benchmark of the search to a figure."""
    name = f"{row.cloud} {row.n:,} × {row.d}, k={row.k}: {row.figure}"
    sign, target = row.limit.split() if row.limit else ("<=", None)
    return Figure(name, row.value, "", float(target) if target else None, at_least=sign == ">=", rounds=row.rounds)


def draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Draw one point per target: the used share of what the target allows."""
    table = pd.DataFrame([_point(name, figure) for name, outcome in outcomes.items() for figure in _targeted(outcome)])
    used = alt.X("share:Q", title="measured, as a share of what the target allows", scale=alt.Scale(type="log"))
    row = alt.Y("figure:N", sort=None, title=None, axis=alt.Axis(labelLimit=560))
    colour = alt.Color(
        "verdict:N",
        title=None,
        legend=alt.Legend(orient="top"),
        scale=alt.Scale(domain=["reached", "MISSED"], range=[COLOURS[0], COLOURS[1]]),
    )
    points = alt.Chart(table).mark_point(filled=True, size=70, opacity=1).encode(x=used, y=row, color=colour)
    text = alt.Chart(table).mark_text(align="left", fontSize=11).encode(x=alt.value(430), y=row, text="text:N")
    limit = alt.Chart(pd.DataFrame({"share": [1.0]})).mark_rule(strokeDash=[4, 3]).encode(x="share:Q")
    chart = (limit + points + text).properties(width=420, height=alt.Step(20), title="Benchmarks against their targets")
    save_chart(themed(chart), path)


def _targeted(outcome: Outcome) -> list[Figure]:
    return [figure for figure in outcome.figures if figure.share is not None]


def _point(benchmark: str, figure: Figure) -> dict[str, Any]:
    return {
        "figure": f"{benchmark}: {figure.name}",
        "share": max(figure.share or 0.0, 1e-6),  # an exact answer has an error of 0, which has no logarithm
        "verdict": figure.verdict,
        "text": f"{_value(figure)} ({_target(figure)})",
    }


def _value(figure: Figure) -> str:
    return "–" if figure.value is None else f"{figure.value:.3g} {figure.unit}".rstrip()


def _target(figure: Figure) -> str:
    return "" if figure.target is None else f"{'≥' if figure.at_least else '≤'} {figure.target:g}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in [head, *rows]
    ]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]
