"""Terminal tables of the lab and of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anisoscope.report.cells import sparkline

if TYPE_CHECKING:
    from anisoscope.studies.demo_training import Curve, DemoRow, TrackedTraining


def losses_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per training: its losses, and those of unigram and bigram counts."""
    table = Table(box=box.SIMPLE_HEAD, title="Loss in nats per token", title_justify="left", title_style="bold")
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


def introduction(steps: int) -> RenderableType:
    """What the demo does, shown before the training."""
    text = (
        "[bold]Training three small transformers.[/] They are one network with the same initial weights, trained on "
        f"the same windows of the same text (Python's help topics) for {steps} steps: as a decoder, as a causal masked "
        "model and as an encoder. The tracker measures layers, attention heads and gradients during training. This "
        "takes a few minutes on two cores."
    )
    return Padding(text, (1, 2))


def demo_table(rows: Sequence[DemoRow], trainings: Mapping[str, TrackedTraining]) -> RenderableType:
    """One row per quantity, one column per model: first value, curve, last value."""
    first = next(iter(trainings.values()))
    title = f"From step 0 to step {first.trained.step}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for name in trainings:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(escape(row.label), *(_curve_cell(row.curves[name]) for name in trainings))
    counts = ", ".join(f"{name}s {value:.2f}" for name, value in first.trained.baselines.items())
    chance = "".join(f" (a random subspace: {row.null:.3f})" for row in rows if row.null is not None)
    note = (
        f"Loss in nats per character (counting {counts}). Geometry after layer {first.middle + 1} of "
        f"{len(first.layers)}. Attention, query and key drift: mean over all heads. Gradient in proxy: share of the "
        f"gradient in the strongest principal directions of held-out activations{chance}. Error bars are in the report."
    )
    return Group(table, Padding(Text(note, style="dim"), (0, 2, 1, 2)))


def _curve_cell(curve: Curve) -> str:
    if not curve:
        return "[dim]–[/]"
    values = [value for _, value in curve]
    return f"[dim]{_short(values[0])}[/] {sparkline(_thinned(values))} [bold]{_short(values[-1])}[/]"


def _thinned(values: Sequence[float], most: int = 6) -> list[float]:
    """At most `most` values, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(number * (len(values) - 1) / (most - 1))] for number in range(most)]


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"
