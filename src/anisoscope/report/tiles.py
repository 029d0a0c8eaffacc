"""The tiles of a report: four or five numbers to know, each with its error, a small curve and a plain label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.caveats import width_of
from anisoscope.report.layer_curves import LayerCurves
from anisoscope.report.questions import value_range
from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.sentences import PHRASES, error_text, layers_text, number
from anisoscope.report.streams import site_text
from anisoscope.report.tables import Row, records_of
from anisoscope.report.tangent_summary import ALPHA, TangentSummary, summarise

MOST = 5
_MOST_PARTS = 3  # runs whose values fit into a tile
_GAP = 0.05  # a change of a share by less than this without sink tokens is not shown
_LABELS = {  # in the order in which tiles are chosen
    "spectral_anisotropy": "Top direction's share of variance",
    "mean_cosine": "Mean cosine between two {rows}",
    "participation_ratio": "Directions that share the variance",
    "two_nn": "Intrinsic dimension",
    "isoscore": "IsoScore (0 a line, 1 a sphere)",
    "top_coordinate": "One coordinate's share of the top direction",
    "effective_rank": "Effective rank",
    "relative_drift": "Mean vector's share of the norm",
}
_SHARES = ("top_coordinate", "removal_curve", "tokens_to_halve", "sink_rate")  # in percent, without a phrase
_HEADS = {"sink_mass": "Attention on the first token", "attention_entropy": "Entropy of attention"}


@dataclass(frozen=True)
class Tile:
    """One number to know.

    Attributes:
        label: What it is, in plain words, with the layer.
        value: The number, or the change `99 % → 10 %`.
        error: ` ± 0.3 %`, or "".
        detail: What it is compared with.
        metric: The metric's name.
        curve: The values over layers or steps.
        ghost: The values over all tokens, if they differ.
        null: The null values.
        parts: The value of each run, if the tile compares runs.
    """

    label: str
    value: str
    metric: str
    error: str = ""
    detail: str = ""
    curve: Sequence[float] = ()
    ghost: Sequence[float] = ()
    null: Sequence[float] = ()
    parts: Sequence[tuple[str, str]] = ()

    def paths(self) -> dict[str, str]:
        """The SVG paths of the small curves in a box of 100 × 30, all on one scale."""
        lines = {"null": self.null, "ghost": self.ghost, "curve": self.curve}
        values = [value for line in lines.values() for value in line]
        return {name: svg_path(line, values) for name, line in lines.items() if len(line) > 1}


def svg_path(values: Sequence[float], scale: Sequence[float]) -> str:
    """The SVG path of a small curve in a box of 100 × 30; `scale` holds all values that share its height."""
    low, high = min(scale), max(scale)
    height = (high - low) or 1.0
    points = (f"{100 * i / (len(values) - 1):.1f},{27 - 24 * (v - low) / height:.1f}" for i, v in enumerate(values))
    return "M" + "L".join(points)


def tiles_of(runs: Sequence[ReportedRun], kind: str) -> list[Tile]:
    """The tiles of a page, at most five."""
    if kind == "claims":
        return _verdict_tiles(runs)
    if kind == "tangent" and (tests := [each for run in runs for each in tangent_tests(run)]):
        return _tangent_tiles(tests)
    if kind == "training":
        return _training_tiles(runs)[:MOST]
    if len(runs) > 1:
        return [tile for metric in _LABELS if (tile := _runs_tile(metric, runs)) is not None][:MOST]
    run = runs[0]
    tiles = [_tile(metric, run) for metric in _LABELS]
    heads = [_heads_tile(metric, run) for metric in _HEADS]
    known = [tile for tile in tiles if tile is not None]
    attention = [tile for tile in heads if tile is not None][:1]
    return [*known[: MOST - len(attention)], *attention] or _any_tiles(run)


def _rows(run: ReportedRun) -> str:
    return "tokens" if run.of_tokens else "rows"


def _label(metric: str, run: ReportedRun, where: str = "") -> str:
    label = _LABELS.get(metric) or _HEADS.get(metric) or metric.replace("_", " ")
    return label.replace("{rows}", _rows(run)) + (f", {where}" if where else "")


def is_percent(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return metric in _SHARES or (metric in PHRASES and PHRASES[metric].percent)


def _error(row: Row, percent: bool) -> str:
    return error_text(row["error"], percent)


def _tile(metric: str, run: ReportedRun) -> Tile | None:
    """The value at the layer with the strongest finding; with and without sink tokens if that matters."""
    curves = run.curves(metric)
    if curves is None:
        return None
    percent = is_percent(metric)
    gaps = curves.gaps()
    widest = max(gaps, key=lambda layer: abs(gaps[layer])) if gaps else None
    if metric == "spectral_anisotropy" and widest is not None and abs(gaps[widest]) >= _GAP:
        layer, row = widest, curves.main[widest]
        value = f"{number(curves.all[layer]['value'], percent)} → {number(row['value'], percent)}"
        left_out = curves.left_out([layer])
        count = "" if left_out is None else f"{left_out[0]:,} "
        without = f"without {count}first and massive tokens"
        detail = f"all tokens → {without}{_error(row, percent).replace(' ±', ', ±')}"
        error = ""
    else:
        layer, row = curves.extreme()
        value, detail, error = number(row["value"], percent), _null_text(row, percent), _error(row, percent)
        if metric == "participation_ratio" and (width := width_of(run.rows, run.info)):
            value += f" of {width:,}"
    where = layers_text([layer], curves.final) if row["layer"] is not None else ""
    return Tile(
        _label(metric, run, where),
        value,
        metric,
        error,
        detail,
        curves.values if len(curves.main) > 1 else (),
        _ghost(curves),
        curves.nulls if len(curves.nulls) == len(curves.main) else (),
    )


def _ghost(curves: LayerCurves) -> list[float]:
    same = curves.sinks_out and list(curves.all) == list(curves.main)
    return [row["value"] for row in curves.all.values()] if same else []


def _null_text(row: Row, percent: bool) -> str:
    return "" if row["null"] is None else f"no structure: {number(row['null'], percent)}"


def _heads_tile(metric: str, run: ReportedRun) -> Tile | None:
    """The mean over heads of each layer, at the layer where it is highest."""
    rows = [row for row in run.rows.get(metric, ()) if row["head"] is not None and row["value"] is not None]
    last = max((row["step"] for row in rows), default=0)
    layers: dict[float, list[float]] = {}
    for row in rows:
        if row["step"] == last and row["layer"] is not None:
            layers.setdefault(row["layer"], []).append(row["value"])
    means = {layer: sum(values) / len(values) for layer, values in sorted(layers.items())}
    if not means:
        return None
    top = max(means, key=lambda layer: means[layer])
    label = _label(metric, run, layers_text([top], None))
    curve = list(means.values()) if len(means) > 1 else ()
    return Tile(label, number(means[top], is_percent(metric)), metric, detail="mean over heads", curve=curve)


def _any_tiles(run: ReportedRun) -> list[Tile]:
    """For records of unknown metrics: the first numbers."""
    tiles = []
    for metric, rows in run.rows.items():
        row = next((row for row in rows if row["value"] is not None), None)
        if row is not None and metric != "verdict":
            tiles.append(Tile(_label(metric, run, row["site"]), number(row["value"]), metric, _error(row, False)))
    return tiles[:MOST]


def _runs_tile(metric: str, runs: Sequence[ReportedRun]) -> Tile | None:
    """The range over layers of each run."""
    curves = {run.label: curve for run in runs if (curve := run.curves(metric)) is not None}
    if len(curves) < 2:
        return None
    percent = is_percent(metric)
    ranges = [(label, value_range(curve.values, percent)) for label, curve in curves.items()]
    label = _label(metric, runs[0])
    if len(ranges) <= _MOST_PARTS:
        return Tile(label, " · ".join(text for _, text in ranges), metric, parts=ranges)
    value = value_range([value for curve in curves.values() for value in curve.values], percent)
    return Tile(label, value, metric, detail=f"{len(ranges)} runs, over their layers")


def _training_tiles(runs: Sequence[ReportedRun]) -> list[Tile]:
    """The loss, and the headline metrics from the first to the last step at the layer that changed most."""
    if len(runs) > 1:
        return [tile for tile in (_losses_tile(runs), *(_runs_tile(metric, runs) for metric in _LABELS)) if tile]
    run = runs[0]
    tiles: list[Tile | None] = [_loss_tile(run), *(_change_tile(metric, run) for metric in _LABELS)]
    if run.alerts:
        count = len(run.alerts)
        steps = sorted({step for step, _ in run.alerts})
        where = f"at step {steps[0]:,}" if len(steps) == 1 else f"from step {steps[0]:,} to {steps[-1]:,}"
        tiles.insert(1, Tile("Alerts", f"{count:,}", "alert", detail=where))
    known = [tile for tile in tiles if tile is not None]
    heads = [tile for metric in _HEADS if (tile := _heads_tile(metric, run)) is not None]
    return [*known, *heads]


def _loss_tile(run: ReportedRun) -> Tile | None:
    name = next((name for name in reversed(list(run.losses)) if run.losses[name]), None)
    if name is None:
        return None
    points = run.losses[name]
    metric = "validation_loss" if name.startswith("validation") else "train_loss"
    value = f"{number(points[0][1])} → {number(points[-1][1])}"
    detail = f"steps {points[0][0]:,} to {points[-1][0]:,}"
    return Tile(f"{name.capitalize()}, nats per token", value, metric, detail=detail, curve=[v for _, v in points])


def _losses_tile(runs: Sequence[ReportedRun]) -> Tile | None:
    last = {
        run.label: points[-1][1] for run in runs for points in list(run.losses.values())[-1:] if points
    }  # the validation loss if it was recorded
    if len(last) < 2:
        return None
    best = min(last, key=lambda label: last[label])
    return Tile("Lowest loss at the end", number(last[best]), "validation_loss", detail=best)


def _change_tile(metric: str, run: ReportedRun) -> Tile | None:
    """A metric from the first to the last step, at the layer where it changed most."""
    if len(run.steps) < 2:
        return _tile(metric, run)
    rows = [row for row in run.every_row(metric) if row["stream"] == run.stream]
    shown = run.curves(metric)
    if shown is None or not rows:
        return None
    example = next(iter(shown.main.values()))
    same = [key for key in example if key.startswith("v_")] + ["tokens"]
    paths: dict[float, dict[int, Row]] = {}
    for row in rows:
        if row["value"] is not None and row["head"] is None and all(row[key] == example[key] for key in same):
            paths.setdefault(row["layer"], {})[row["step"]] = row
    moved = {
        layer: abs(path[max(path)]["value"] - path[min(path)]["value"])
        for layer, path in paths.items()
        if len(path) > 1
    }
    if not moved:
        return None
    layer = max(moved, key=lambda each: moved[each])
    path = paths[layer]
    percent = is_percent(metric)
    ends = [number(path[step]["value"], percent) for step in (min(path), max(path))]
    value = " → ".join(ends) if ends[0] != ends[1] else ends[0]
    where = layers_text([layer], shown.final) if layer is not None else ""
    curve = [path[step]["value"] for step in sorted(path)]
    detail = _null_text(path[max(path)], percent) or "first to last step"
    return Tile(_label(metric, run, where), value, metric, detail=detail, curve=curve)


def tangent_tests(run: ReportedRun) -> list[TangentSummary]:
    """The tests of gradients of a run at the last step that has them."""
    tested = run.groups.get("gradient_q")
    if tested is None:
        return []
    last = run.table[run.table["step"] == tested["step"].max()]
    return [each for each in summarise(records_of(last)) if each.q]


def _tangent_tiles(tests: Sequence[TangentSummary]) -> list[Tile]:
    hidden = [each for each in tests if each.gradient == "hidden"] or list(tests)
    top = max(hidden, key=lambda each: each.enrichment)
    findings = sum(each.is_finding for each in hidden)
    energy = number(top.energy.value or 0.0, percent=True)
    error = f" ± {100 * top.energy.error:.2g} %" if top.energy.error is not None else ""
    where = f"{site_text(top.site)}, {top.proxy}, rank {top.rank}"
    ranked = [each for each in hidden if (each.proxy, each.rank) == (top.proxy, top.rank)]
    smallest, smallest_site = min(
        ((q, site_text(each.site)) for each in hidden for q in each.q.values()), default=(1.0, "")
    )
    return [
        Tile(f"Gradients' energy in a basis, largest effect: {where}", energy, "gradient_energy", error,
             f"chance: {number(top.level, percent=True)}", [each.energy.value or 0.0 for each in ranked],
             null=[each.level for each in ranked]),
        Tile("Energy over chance", f"{top.enrichment:.2g} ×", "gradient_enrichment", detail=top.effect),
        Tile("Tests with a relation", f"{findings} of {len(hidden)}", "gradient_q",
             detail=f"q ≤ {ALPHA:g} for plain and for unit rows"),
        Tile("Smallest q-value", number_q(smallest), "gradient_q", detail=smallest_site),
    ]  # fmt: skip


def number_q(value: float) -> str:
    """A p- or q-value.

    >>> number_q(0.0), number_q(0.0321)
    ('< 1e-6', '0.032')
    """
    return "< 1e-6" if value < 1e-6 else f"{value:.2g}"


def _verdict_tiles(runs: Sequence[ReportedRun]) -> list[Tile]:
    rows = [row for run in runs for row in run.rows.get("verdict", ())]
    counts = Counter(str(row.get("v_verdict")) for row in rows)
    lines = len({row.get("v_line") for row in rows}) or 1
    names = dict.fromkeys(["reproduced", "not reproduced", "inconclusive", *counts])
    tiles = [
        Tile(f"Verdicts: {name}", str(counts[name]), "verdict", detail=f"of {len(rows)}, {lines} per claim")
        for name in names
        if counts[name] or name in ("reproduced", "not reproduced")
    ]
    claims = len({row.get("v_claim") for row in rows})
    return [Tile("Claims tested", str(claims), "verdict", detail="published statements"), *tiles][:MOST]
