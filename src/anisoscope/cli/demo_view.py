"""The picture of the demo in the terminal: the loss and three curves of two trainings as they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anisoscope.report.cells import sparkline

if TYPE_CHECKING:
    from anisoscope.studies.claims.claim import Claim, Verdict
    from anisoscope.studies.demo_training import DemoTraining

# What the papers say of each curve.
_PAPERS = {
    "loss": "",
    "anisotropy over layers": "Razzhigaev 2023: a bell in decoders, flat in encoders",
    "intrinsic dimension": "Razzhigaev 2023: rises, then falls",
    "gradient in tangent basis": "Bernas 2026: strong early, weaker late",
}
_CURVE_OF = {"S1": "anisotropy over layers", "S2": "intrinsic dimension", "T4": "gradient in tangent basis"}
_STYLES = {"reproduced": "green", "not reproduced": "red"}


def introduction(steps: int) -> RenderableType:
    """What the demo does, shown before the training."""
    text = (
        "[bold]Training a decoder and an encoder side by side.[/] They are one network with the same initial weights, "
        f"trained on the same text (Python's help topics) for {steps:,} steps, one process per core. Watch three "
        "published curves appear: how much one direction dominates over the layers, how many dimensions the states "
        "fill, and how much of the learning signal lies where activations vary. About three minutes on two idle cores."
    )
    return Padding(text, (1, 2))


def curves_view(trainings: Mapping[str, DemoTraining], steps: int) -> RenderableType:
    """One row per curve, with what the papers report, and one column per model."""
    table = Table(box=box.SIMPLE_HEAD, title=_title(trainings, steps), title_justify="left", title_style="bold")
    table.add_column("", min_width=20)
    for name in trainings:
        table.add_column(name, no_wrap=True)
    for label, words in _PAPERS.items():
        first = f"{label}\n[dim]{words}[/]" if words else label
        table.add_row(first, *(_cell(label, training) for training in trainings.values()))
    note = (
        "Loss in nats per character. Anisotropy: λ1/Σλ from the embedding (left) to the last state (right). The other "
        "curves run over training, on a logarithmic scale of steps; the first steps collapse all states and say little."
    )
    return Group(table, Padding(Text(note, style="dim"), (0, 2, 1, 2)))


def judged_view(judged: Sequence[tuple[Claim, tuple[Verdict, Verdict]]]) -> RenderableType:
    """One row per curve: the verdict as published and under control, and what decided."""
    from anisoscope.studies.claims.claim_tables import what_decided

    table = Table(box=box.SIMPLE_HEAD, title="Judged by the rules of `anisoscope claims run`", title_justify="left")
    table.title_style = "bold"
    for name in ("", "as published", "under control", "what decided"):
        table.add_column(name, style="dim" if name == "what decided" else None)
    for claim, verdicts in sorted(judged, key=lambda each: list(_CURVE_OF).index(each[0].id)):
        outcomes = (f"[{_STYLES.get(v.outcome, 'dim')}]{v.outcome}[/]" for v in verdicts)
        table.add_row(f"{_CURVE_OF[claim.id]} ({claim.id})", *outcomes, escape(what_decided(verdicts)))
    note = "The units are groups of held-out windows of these two trainings; other seeds may differ."
    return Group(table, Padding(Text(note, style="dim"), (0, 2, 1, 2)))


def _title(trainings: Mapping[str, DemoTraining], steps: int) -> str:
    done = [training.losses[-1]["step"] if training.losses else 0 for training in trainings.values()]
    return f"Step {min(done):,} of {steps:,}"


def _cell(label: str, training: DemoTraining) -> str:
    values = _values(label, training)
    if not values:
        return "[dim]–[/]"
    if label == "anisotropy over layers":
        return f"{sparkline(values)} [bold]{min(values):.2f}–{max(values):.2f}[/]"
    return f"[dim]{values[0]:.2f}[/] {sparkline(values)} [bold]{values[-1]:.2f}[/]"


def _values(label: str, training: DemoTraining) -> list[float]:
    looks = training.measurements
    if label == "loss":
        return _thinned([float(row["validation"]) for row in training.losses])
    if not looks:
        return []
    if label == "anisotropy over layers":
        return looks[-1].profile
    if label == "intrinsic dimension":
        return [sum(each.dimension) / len(each.dimension) for each in looks]
    return [each.enrichment for each in looks if each.enrichment is not None]


def _thinned(values: Sequence[float], most: int = 14) -> list[float]:
    if len(values) <= most:
        return list(values)
    return [values[round(number * (len(values) - 1) / (most - 1))] for number in range(most)]


class CurvesDisplay:
    """A context that shows the curves while they grow: a picture in a terminal, otherwise one line per measurement."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console, self.steps = console, steps
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self.printed: set[tuple[str, int]] = set()

    def __enter__(self) -> CurvesDisplay:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, trainings: Mapping[str, DemoTraining]) -> None:
        """Show the trainings so far."""
        if self.live is not None:
            self.live.update(curves_view(trainings, self.steps))
            return
        for name, training in trainings.items():
            for number, look in enumerate(training.measurements):
                if (name, look.step) not in self.printed and training.losses:
                    self.printed.add((name, look.step))
                    self.console.print(f"{name} {_line(training, number)}", highlight=False, soft_wrap=True)


def _line(training: DemoTraining, number: int) -> str:
    """One measurement as a line of text."""
    look = training.measurements[number]
    loss = min(training.losses, key=lambda row: abs(row["step"] - look.step))["validation"]
    dimension = sum(look.dimension) / len(look.dimension)
    text = f"step {look.step}: loss {loss:.2f}, highest λ1/Σλ {max(look.profile):.2f}, dimension {dimension:.1f}"
    return text if look.enrichment is None else f"{text}, gradient in basis {look.enrichment:.1f} × chance"
