"""What the lab says in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anisoscope.report.terminal import sparkline

if TYPE_CHECKING:
    from anisoscope.studies.story import Curve, Finding, Grown, Row

_MARK = {True: "[green]●[/]", False: "[red]○[/]", None: "[dim]·[/]"}


def losses_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row a training: its losses beside those of counting tokens and pairs of tokens."""
    table = Table(box=box.SIMPLE_HEAD, title="Loss in nats a token", title_justify="left", title_style="bold")
    table.add_column("model", no_wrap=True)
    for name in ("steps", "training", "validation", "bigram", "unigram", "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        stopped = f" [red]{row['stopped']}[/]" if row["stopped"] else ""
        table.add_row(
            escape(row["name"]) + stopped,
            f"{row['step']:,}",
            _loss(row["train"]),
            f"[bold]{_loss(row['validation'])}[/]",
            _loss(row["bigram"]),
            _loss(row["unigram"]),
            f"{row['seconds']:.0f}",
        )
    return table


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


# --- the demo -----------------------------------------------------------------------------------------------------


def opening(steps: int) -> RenderableType:
    """What is about to happen, before the bars begin."""
    text = (
        "[bold]Three twins learn to read.[/] One network, one text (Python's own help topics), the same first weights, "
        f"the same windows in the same order: {steps} steps as a decoder, as a causal masked model and as an encoder. "
        "The tracker looks on: at layers, heads and true gradients. It takes a few minutes on two cores."
    )
    return Padding(text, (1, 2))


def story_table(rows: Sequence[Row], grown: Mapping[str, Grown]) -> RenderableType:
    """One row a measure, one column a model: first value, the way there, last value."""
    first = next(iter(grown.values()))
    title = f"From step 0 to step {first.trained.step}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for name in grown:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(escape(row.label), *(_life(row.curves[name]) for name in grown))
    counting = ", ".join(f"{name}s {value:.2f}" for name, value in first.trained.baselines.items())
    chance = "".join(f", where a random subspace holds {row.null:.3f}" for row in rows if row.null is not None)
    note = (
        f"Loss in nats a character (counting {counting}). Geometry after block {first.middle + 1} of "
        f"{len(first.layers)}; attention, query and key drift: mean over all heads. Proxy: the strongest principal "
        f"directions of held-out activations{chance}. Error bars are in the report."
    )
    return Group(table, Padding(Text(note, style="dim"), (0, 2, 1, 2)))


def _life(curve: Curve) -> str:
    """A curve in one cell: first value, sparkline, last value."""
    if not curve:
        return "[dim]–[/]"
    values = [value for _, value in curve]
    return f"[dim]{_short(values[0])}[/] {sparkline(_thinned(values))} [bold]{_short(values[-1])}[/]"


def _thinned(values: Sequence[float], most: int = 6) -> list[float]:
    """At most so many values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """One row a claim: what it says, what was seen, and whether that agrees."""
    title = "What these three lives say of the claims"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for each in findings:
        marks = f"{_MARK[each.published]} {_MARK[each.controlled]} [bold]{each.claim}[/]"
        table.add_row(marks, f"{escape(each.says)}\n[dim]{escape(each.seen)}[/]")
    note = (
        "● agrees  ○ does not  · not looked at here. First mark: as published; second: under a stronger control "
        "(without sinks, neighbours of other documents, mask and objective apart). One seed and small models: hints, "
        "not verdicts."
    )
    return Group(table, Padding(Text(note, style="dim"), (0, 2, 1, 2)))
