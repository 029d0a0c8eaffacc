"""The parts of the accuracy benchmark. Each writes one file of points and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy import bias, coverage, dimensions, errors, heads
from benchmarks.accuracy.page import reading
from benchmarks.harness import SCRATCH, Figure, Outcome, Settings

Point = dict[str, Any]
Task = tuple[str, Callable[[], list[Point]]]  # a name, and a function that measures its points


def _errors(quick: bool) -> Iterator[Task]:
    for dtype in errors.DTYPES:
        if dtype != "fp64":
            yield f"rounding {dtype}", partial(_rounding, dtype)
    for cell in errors.grid(quick):
        yield f"{cell}, {cell.dtype}", partial(_listed, errors.worst_of, cell)
    for head_cell in heads.grid(quick):
        yield f"{head_cell}, {head_cell.dtype}", partial(_listed, heads.worst_of, head_cell)
    for cell in errors.grid(quick):
        if cell.n == 64 and cell.d == 8 and cell.dtype == "fp32":
            yield f"digits {cell}", partial(_digits, cell)


def _bias(quick: bool) -> Iterator[Task]:
    for population, n in bias.cases(quick):
        yield f"{population} {n}", partial(_listed, bias.read, population, n, quick)


def _coverage(quick: bool) -> Iterator[Task]:
    for world in coverage.worlds():
        sets = 12 if quick else coverage.DATA_SETS
        yield f"{world.name} {sets}", partial(_listed, coverage.cover, world, sets)


def _dimensions(quick: bool) -> Iterator[Task]:
    for name in dimensions.manifolds(quick):
        yield name, partial(_listed, dimensions.answers, name, quick)


def _listed(measure: Callable[..., Iterable[Any]], *arguments: Any) -> list[Point]:
    return [asdict(each) for each in measure(*arguments)]


def _rounding(dtype: str) -> list[Point]:
    return [{"dtype": dtype, "rounding": errors.rounding(dtype)}]


def _digits(cell: errors.Cell) -> list[Point]:
    return [{"digits": str(cell), "apart": errors.oracle_apart(cell)}]


PARTS: dict[str, Callable[[bool], Iterable[Task]]] = {
    "errors": _errors,
    "bias": _bias,
    "coverage": _coverage,
    "dimensions": _dimensions,
}


def run(part: str, settings: Settings) -> Path:
    """Measure one part. An interrupted run keeps its results, and the next run resumes from there."""
    folder = SCRATCH / ("accuracy-quick" if settings.quick else "accuracy")
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"{part}.jsonl"
    known = {line["task"]: line["points"] for line in map(json.loads, _lines(done))}
    tasks = list(PARTS[part](settings.quick))
    path = settings.results / f"accuracy-{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, tasks, known)
    for name, measure in tasks:
        if name not in known:
            known[name] = measure()
            with done.open("a") as file:
                file.write(json.dumps({"task": name, "points": known[name]}) + "\n")
            _write(path, tasks, known)
            print(f"{part}: {name}", flush=True)
    done.unlink(missing_ok=True)
    return path


def _write(path: Path, tasks: Sequence[Task], known: Mapping[str, list[Point]]) -> None:
    measured = [name for name, _ in tasks if name in known]
    points = worst_cells([point for name in measured for point in known[name]])
    report = {"tasks": len(tasks), "measured": len(measured), "points": points}
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def worst_cells(points: Sequence[Point]) -> list[Point]:
    """Reduce the errors by cell to the worst of each metric and dtype; other points stay as they are."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if "cell" in point:
            groups.setdefault((point["metric"], point["dtype"]), []).append(point)
    worst = [
        {
            **max(group, key=lambda point: point["error"]),
            "compared": sum(point["compared"] for point in group),
            "missing": sum(point["missing"] for point in group),
            "cells": len(group),
        }
        for group in groups.values()
    ]
    return worst + [point for point in points if "cell" not in point]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def accuracy(settings: Settings) -> Outcome:
    """Run all parts; the figures are what docs/accuracy.md promises."""
    found = {part: json.loads(run(part, settings).read_text())["points"] for part in PARTS}
    compared = [point for point in found["errors"] if "metric" in point]
    short = [point["number"] for point in found["coverage"] if reading(point) == "TOO SHORT"]
    held = [point for point in found["coverage"] if reading(point) == "holds"]
    twins = [(p["manifold"], p["value"]) for p in found["dimensions"] if p["estimator"] == "two_nn"]
    peers = {p["manifold"]: p["value"] for p in found["dimensions"] if p["estimator"] == "skdim TwoNN"}
    apart = max(abs(value / peers[name] - 1) for name, value in twins if value and peers.get(name))
    return Outcome(
        [
            Figure("largest error of any metric in any cell", max(p["error"] for p in compared), "", 1e-4),
            Figure("numbers that only the oracle has", sum(p["missing"] for p in compared), ""),
            Figure("coverages in 90 to 98 %", len(held), "", note=f"of {len(found['coverage'])}"),
            Figure("error bars that are too short", len(short), "", note=", ".join(short) or None),
            Figure("two_nn, distance from scikit-dimension's over its manifolds", apart, "", 0.02),
        ]
    )
