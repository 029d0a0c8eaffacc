"""Terminal tables of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from anisoscope.studies.lab.effects import Effect


def losses_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per training: its losses, and those of unigram and bigram counts."""
    table = Table(box=box.SIMPLE_HEAD, title="Loss in nats per token", title_justify="left", title_style="bold")
    table.add_column("model", overflow="fold")
    for name in ("steps", "training", "validation", "bigram", "unigram", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
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


def effects_table(effects: Mapping[str, Sequence[Effect]]) -> Table:
    """One row per metric and effect: its value, and the 95 % interval or why there is none."""
    table = Table(box=box.SIMPLE_HEAD, title="Effects of the switches", title_justify="left", title_style="bold")
    table.add_column("metric", no_wrap=True)
    table.add_column("change", overflow="fold")
    table.add_column("effect", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    reasons: list[str] = []
    for metric, listed in effects.items():
        for number, effect in enumerate(listed):
            value = "–" if effect.estimate is None else f"{effect.estimate.value:+.3g}"
            interval = "–" if effect.interval is None else "[{:+.3g}, {:+.3g}]".format(*effect.interval)
            if effect.reason is not None:
                reasons.append(f"{metric}: {effect.reason}")
            excludes_zero = effect.interval is not None and effect.interval[0] * effect.interval[1] > 0
            value = f"[bold]{value}[/]" if excludes_zero else value
            change = str(effect).replace(" × ", "\n× ")
            table.add_row(metric if number == 0 else "", escape(change), value, escape(interval))
        table.add_section()
    table.caption = _caption(reasons)
    table.caption_justify = "left"
    return table


def _caption(reasons: Sequence[str]) -> str:
    lines = ["A × B is an interaction: how much the effect of A changes with B."]
    texts = {text.split(": ", 1)[1] for text in reasons}
    if len(texts) == 1:
        lines.append(f"–: {texts.pop()}.")
    else:
        lines += [f"– for {text}." for text in dict.fromkeys(reasons)]
    if not reasons:
        lines.append("Bold: the interval excludes 0, which happens by chance in one row of twenty.")
    return "\n".join(lines)


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
