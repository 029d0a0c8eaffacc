"""Write the measured parts of docs/accuracy.md from the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.errors import ABSOLUTE, DTYPES
from benchmarks.harness import RESULTS, ROOT

PAGE = ROOT / "docs" / "accuracy.md"
RANGE = 0.90, 0.98  # where the coverage of a 95 % interval over 300 data sets should lie
Point = dict[str, Any]

# what to use if a value is biased, by metric
INSTEAD = {
    "mean_cosine": "`mean_cosine_across_documents`",
    "drift_norm": "`mean_cosine_across_documents`",
    "relative_drift": "its null, or `mean_cosine_across_documents`",
    "spectral_anisotropy": "its null",
    "participation_ratio": "`participation_ratio_unbiased`",
    "isoscore": "`participation_ratio_unbiased`",
    "effective_rank": "its null, or `participation_ratio_unbiased`",
    "two_nn": "`neighbours=all` and `gride 1`",
    "two_nn_ml": "`neighbours=all` and `gride 1`",
    "gride": "a smaller scale",
    "mle_dimension": "`gride` at small scales",
}


def page(text: str | None = None, results: Path = RESULTS) -> str:
    """Return a page (docs/accuracy.md by default) with its measured parts rebuilt from the results."""
    text = PAGE.read_text() if text is None else text
    for part, table in TABLES.items():
        path = results / f"accuracy-{part}.json"
        report = json.loads(path.read_text()) if path.exists() else {"points": []}
        begin, end = f"<!-- {part}: python -m benchmarks.accuracy {part} -->", f"<!-- end of {part} -->"
        before, rest = text.split(begin)
        found = table(report["points"]) if report["points"] else "Not measured yet."
        if report["points"] and report["measured"] < report["tasks"]:
            found = f"{report['measured']} of {report['tasks']} tasks of this part have been measured.\n\n{found}"
        text = f"{before}{begin}\n\n{found}\n\n{end}{rest.split(end)[1]}"
    return text


def _errors(points: Sequence[Point]) -> str:
    cells, head_cells = (
        _cells([p for p in points if "metric" in p and p["cell"].startswith("heads") == heads])
        for heads in (False, True)
    )
    missing = sum(p["missing"] for p in points if "metric" in p)
    rows = []
    for name in dict.fromkeys(p["metric"] for p in points if "metric" in p):
        of_metric = [p for p in points if p.get("metric") == name]
        by = {kind: max((p["error"] for p in of_metric if p["dtype"] == kind), default=None) for kind in DTYPES}
        worst = max(of_metric, key=lambda p: p["error"])
        where = f"{worst['dtype']}, {worst['cell']}" + (f" ({worst['number']})" if worst["number"] else "")
        number = sum(p["compared"] for p in of_metric)
        label = f"`{name}`" + (" (absolute)" if name in ABSOLUTE else "")
        rows.append([label, str(number), *(_small(by[kind]) for kind in DTYPES), where if worst["error"] else "–"])
    rounding = ", ".join(f"{p['dtype']} {p['rounding']:.1g}" for p in points if "rounding" in p)
    apart = max((p["apart"] for p in points if "apart" in p), default=None)
    numbers = sum(p["compared"] for p in points if "metric" in p)
    lines = [
        f"{cells} cells of rows and {head_cells} of heads; {numbers:,} values compared; {missing} values that only "
        "the oracle has.",
        f"The oracle itself agrees with 50-digit arithmetic to {_small(apart)} (mpmath, 64 × 8 rows).",
        "Rounding the input alone changes spectral anisotropy, participation ratio and isoscore by up to "
        f"(1024 × 64, power law, mean 0 and 1): {rounding}.",
        "",
        *_table(["metric", "values", *DTYPES, "worst in"], rows),
    ]
    return "\n".join(lines)


def _cells(points: Sequence[Point]) -> int:
    """Return the number of cells of the metric that has most of them, over all dtypes."""
    return sum(max((p["cells"] for p in points if p["dtype"] == kind), default=0) for kind in DTYPES)


def _bias(points: Sequence[Point]) -> str:
    lines: list[str] = []
    for population in dict.fromkeys(p["population"] for p in points):
        own = [p for p in points if p["population"] == population]
        sizes = sorted({p["n"] for p in own})
        rows = []
        for number in dict.fromkeys(p["number"] for p in own):
            by = {p["n"]: p for p in own if p["number"] == number}
            truth = next(iter(by.values()))["truth"]
            rows.append([f"`{number}`", _plain(truth), *(_with_null(by.get(n)) for n in sizes)])
        head = ["quantity", "population", *(f"n = {n}" for n in sizes)]
        lines += [f"**{population.capitalize()}**, 64 dimensions:", "", *_table(head, rows), ""]
    return "\n".join(lines).rstrip()


def _with_null(point: Point | None) -> str:
    if point is None:
        return "–"
    return _plain(point["value"]) + ("" if point["null"] is None else f" ({_plain(point['null'])})")


def _coverage(points: Sequence[Point]) -> str:
    lines: list[str] = []
    for world in dict.fromkeys(p["world"] for p in points):
        own = [p for p in points if p["world"] == world]
        rows = [
            [
                f"`{p['number']}`",
                *(_plain(p[key]) for key in ("truth", "mean", "spread", "error")),
                *(f"{p[key]:.1%}" for key in ("coverage", "coverage_of_mean")),
                reading(p),
            ]
            for p in own
        ]
        head = ["quantity", "true", "mean", "spread", "recorded error", "holds the true value", "holds its mean", ""]
        lines += [f"**{world.capitalize()}**, {own[0]['sets']} data sets:", "", *_table(head, rows), ""]
    return "\n".join(lines).rstrip()


def reading(point: Point) -> str:
    """Return the reading of a coverage in words.

    >>> reading({"number": "isoscore", "coverage": 0.0, "coverage_of_mean": 0.95, "mean": 0.8, "truth": 1.0})
    'biased low: read `participation_ratio_unbiased`'
    """
    low, high = RANGE
    metric = str(point["number"]).partition(" ")[0]
    if low <= point["coverage"] <= high:
        return "holds"
    if point["coverage"] > high:
        return "longer than needed"
    if point["coverage_of_mean"] >= low:
        side = "low" if point["mean"] < point["truth"] else "high"
        return f"biased {side}: read {INSTEAD[metric]}" if metric in INSTEAD else f"biased {side}"
    return "TOO SHORT"


def _dimensions(points: Sequence[Point]) -> str:
    ours = ["two_nn", "two_nn_ml", "gride 4", "gride 16", "mle_dimension", "local_pca_dimension"]
    peers = ["skdim TwoNN", "skdim GRIDE", "skdim MLE", "skdim lPCA", "DADApy 2NN", "DADApy Gride 4", "DADApy Gride 16"]
    rows, off = [], {name: list[float]() for name in [*ours, *peers]}
    for manifold in dict.fromkeys(p["manifold"] for p in points):
        by = {p["estimator"]: p for p in points if p["manifold"] == manifold}
        true, width = next(iter(by.values()))["true"], next(iter(by.values()))["width"]
        for name in off:
            if name in by and by[name]["value"] is not None:
                off[name].append(abs(by[name]["value"] / true - 1))
        cells = [_plain(by[name]["value"]) if name in by else "–" for name in off]
        rows.append([manifold, f"{true} in {width}", *cells])
    mean = [f"{sum(each) / len(each):.0%}" if each else "–" for each in off.values()]
    rows.append(["mean relative error", "", *mean])
    failed = {(p["estimator"], p["reason"]) for p in points if p["value"] is None}
    head = ["manifold", "true", *(f"`{name}`" for name in ours), *peers]
    return "\n".join([*_table(head, rows), *(f"\n{name}: {why}" for name, why in sorted(failed))])


TABLES: dict[str, Callable[[Sequence[Point]], str]] = {
    "errors": _errors,
    "bias": _bias,
    "coverage": _coverage,
    "dimensions": _dimensions,
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *map(list, rows))]


def _small(error: float | None) -> str:
    return "–" if error is None else "0" if error == 0 else f"{error:.0e}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"
