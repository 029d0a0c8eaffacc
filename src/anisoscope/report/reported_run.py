"""A run as the parts of a report need it: its label, its info, its rows by metric, and what kind of run it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import pandas as pd

from anisoscope.report.checked_info import checked_info
from anisoscope.report.layer_curves import LayerCurves, layer_curves
from anisoscope.report.questions import QuestionAnswer, answers, streams_of
from anisoscope.report.tables import Depths, Row, by_metric, depths_of, first_and_last, parse_site, rows_of, table_of
from anisoscope.report.tables import run_labels as labels_of
from anisoscope.store.run import Run

LOSSES = {"train_loss": "training loss", "validation_loss": "validation loss"}
_LOOP = ("learning_rate", "gradient_norm", "update_ratio", *LOSSES)  # records of the training loop, not of the model
_RESIDUAL = ("resid", "dec.resid", "enc.resid")


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report.

    Attributes:
        label: Its name in the report, different for every run.
        info: What it reports of itself, checked.
        created: When it was created, as ISO text.
        command: The command line that made it.
        table: Its records with this label.
        depths: The number of layers by run and stack.
    """

    label: str
    info: Mapping[str, Any]
    created: str
    command: str | None
    table: pd.DataFrame
    depths: Depths

    @cached_property
    def cards(self) -> Mapping[str, Mapping[str, Any]]:
        """The metric cards by name."""
        cards: Mapping[str, Mapping[str, Any]] = self.info["metrics"]
        return cards

    @cached_property
    def groups(self) -> Mapping[str, pd.DataFrame]:
        """The records by metric, of all steps."""
        return by_metric(self.table)

    @cached_property
    def rows(self) -> Mapping[str, list[Row]]:
        """The rows of the first and the last step by metric: sentences and tables need no others."""
        return {name: rows_of(group, self.depths) for name, group in by_metric(first_and_last(self.table)).items()}

    @cached_property
    def stream(self) -> str:
        """The stream that the report is about: the residual stream (of the decoder), otherwise the first."""
        streams = streams_of(self.rows)
        return next((stream for stream in _RESIDUAL if stream in streams), streams[0] if streams else "resid")

    @cached_property
    def steps(self) -> list[int]:
        """The steps at which the model was measured."""
        inside = self.table[~self.table["metric"].isin([*_LOOP, "alert"])]
        return sorted(int(step) for step in inside["step"].unique())

    @cached_property
    def kind(self) -> str:
        """What was measured: vectors, model, training, tangent, similarity or claims."""
        metrics = set(self.groups)
        sites = [parse_site(text) for text in self.table["site"].unique()]
        if metrics and metrics <= {"verdict"}:
            return "claims"
        if self.info.get("kind") in ("tangent", "similarity"):
            return str(self.info["kind"])
        if all(site.kind in ("vectors", "weight") for site in sites):
            return "vectors"
        if metrics & set(LOSSES) or len(self.steps) > 1:
            return "training"
        layered = any(not site.grad and site.layer is not None for site in sites)
        return "model" if layered or "gradient_q" not in metrics else "tangent"

    @cached_property
    def of_tokens(self) -> bool:
        """Whether rows are tokens, and not vectors of unknown origin or one row per sequence."""
        return self.kind != "vectors" and self.info.get("rows", "tokens") == "tokens"

    def every_row(self, metric: str) -> list[Row]:
        """The rows of a metric at all steps."""
        group = self.groups.get(metric)
        return [] if group is None else rows_of(group, self.depths)

    def curves(self, metric: str, step: int | None = None) -> LayerCurves | None:
        """A metric over the layers of the main stream, at the last step or at a given one."""
        rows = (
            self.rows if step is None or step in (self.steps[0], self.steps[-1]) else {metric: self.every_row(metric)}
        )
        return layer_curves(metric, rows.get(metric, ()), self.stream, self.cards.get(metric, {}), step)

    @cached_property
    def answers(self) -> list[QuestionAnswer]:
        """The answers to the headline questions, for the main stream."""
        return answers(self.rows, self.stream, self.cards)

    @cached_property
    def losses(self) -> dict[str, list[tuple[int, float]]]:
        """(step, loss) of training and validation, if they were recorded."""
        return {name: points for metric, name in LOSSES.items() if (points := self.points(metric))}

    def points(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of a metric of the training loop, in the order of steps."""
        group = self.groups.get(metric)
        if group is None:
            return []
        known = group[group["value"].notna() & group["index"].isna()].sort_values("step")
        first = known[known["site"] == known["site"].iloc[0]] if len(known) else known
        return [(int(step), float(value)) for step, value in zip(first["step"], first["value"], strict=True)]

    @cached_property
    def alerts(self) -> list[tuple[int, str]]:
        """(step, text) of each alert."""
        group = self.groups.get("alert")
        if group is None:
            return []
        notes = zip(group["step"], group["site"], group["note"], strict=True)
        return [(int(step), f"{site}: {note}" if isinstance(note, str) else str(site)) for step, site, note in notes]

    @cached_property
    def model_name(self) -> str:
        """The model's name without its folder; "" if the run has no model."""
        model = self.info.get("model")
        name = model.get("source") or model.get("architecture") if isinstance(model, Mapping) else model
        return "" if not name else PurePath(str(name)).name or str(name)

    @cached_property
    def data_text(self) -> str:
        """What was measured: the name of the data and the number of tokens or rows."""
        data = self.info.get("data")
        data = data if isinstance(data, Mapping) else {}
        name = next((str(data[key]) for key in ("source", "file", "text") if isinstance(data.get(key), str)), "")
        name = name if ":" in name else PurePath(name).name
        counts = {"tokens": data.get("tokens"), "rows": data.get("n") or data.get("rows")}
        count = next((f"{n:,} {unit}" for unit, n in counts.items() if isinstance(n, int)), "")
        return " · ".join(part for part in (name, count) if part)


def reported_runs(runs: Sequence[Run], table: pd.DataFrame | None = None) -> list[ReportedRun]:
    """Runs as the parts of a report need them; `table_of(runs)` is read unless the caller has it already."""
    table = table_of(runs) if table is None else table
    return [
        reported_run(table[table["run"] == label], run.info, label, run.created, run.command)
        for label, run in zip(labels_of(runs), runs, strict=True)
    ]


def reported_run(
    table: pd.DataFrame, info: Mapping[str, Any], label: str, created: str = "", command: str | None = None
) -> ReportedRun:
    """One run of a report, from its records and its info."""
    return ReportedRun(label, checked_info(info), created, command, table, depths_of(table))


def measured_runs(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs without those that only have verdicts on claims, unless there are no others."""
    return [run for run in runs if run.kind != "claims"] or list(runs)


def page_kind(runs: Sequence[ReportedRun]) -> str:
    """The kind of a page: that of its runs if they agree, `models` for several models."""
    kinds = {run.kind for run in runs}
    if len(kinds) == 1:
        kind = kinds.pop()
        return "models" if kind == "model" and len(runs) > 1 else kind
    return "models"
