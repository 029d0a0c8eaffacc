"""Terminal tables of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table


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
