"""What a `Run` shows of itself: tidy frames, profiles over layers, charts, tables, pages and comparisons.

`Run` imports this module when one of its methods is called: the only import of the store that points up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anisoscope.errors import InputError
from anisoscope.records import headline_variant
from anisoscope.report.interval import t_factor
from anisoscope.report.tables import (
    depths_of,
    layer_position,
    of_metric,
    parse_site,
    run_labels,
    stream_of,
    table_of,
    with_range,
)
from anisoscope.store.columns import canonical

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anisoscope.store.run import Run

TIDY = ("stream", "kind", "layer", "depth", "head", "low", "high")  # columns that a frame has besides `COLUMNS`


def tidy(run: Run) -> pd.DataFrame:
    """The records of a run with the columns of `TIDY`; see `Run.frame`."""
    table = with_range(run.table(), run)
    sites, codes = np.unique(table["site"].astype(str), return_inverse=True)
    parsed = [parse_site(site) for site in sites]
    layers = {stack: depth for (_, stack), depth in depths_of(table).items()}
    layer = np.array([_number(layer_position(site, layers.get(site.stack))) for site in parsed])
    last = np.array([layers.get(site.stack, 0) for site in parsed], dtype=float)
    depth = np.where(last > 0, (np.minimum(layer, last - 1) + 1) / np.maximum(last, 1), np.nan)  # embed 0, last layer 1
    head = np.array([_number(site.head) for site in parsed])[codes] if len(sites) else np.zeros(0)
    heads_by_index = np.array([site.kind == "pattern" for site in parsed], dtype=bool)
    if heads_by_index.any():
        head = np.where(heads_by_index[codes], table["index"].astype(float), head)
    half = table["error"] * table["error_kind"].map(t_factor, na_action="ignore").astype(float)
    value = table["value"]
    # a value outside the range (a card of another version) stays in its interval
    low = np.maximum(value - half, np.minimum(table["least"].fillna(-np.inf), value))
    high = np.minimum(value + half, np.maximum(table["most"].fillna(np.inf), value))
    columns: dict[str, Any] = {
        "stream": np.array([stream_of(site) for site in parsed], dtype=object)[codes] if len(sites) else [],
        "kind": np.array([site.kind for site in parsed], dtype=object)[codes] if len(sites) else [],
        "layer": layer[codes],
        "depth": depth[codes],
        "head": head,
        "low": low,
        "high": high,
    }
    return table.drop(columns=["least", "most"]).assign(**columns)


def concat(runs: Sequence[Run]) -> pd.DataFrame:
    """Join the frames of several runs into one.

    Args:
        runs: The runs.

    Returns:
        The rows of `Run.frame` of all runs. The column `run` is different for every run.

    Example:
        >>> frame = anisoscope.concat([run_a, run_b])                          # doctest: +SKIP
        >>> frame.query("metric == 'isoscore'").groupby(["run", "tokens"])["value"].mean()    # doctest: +SKIP
    """
    if not runs:
        raise InputError("There are no runs to join. Pass a list of runs.")
    frames = [run.frame().assign(run=label) for run, label in zip(runs, run_labels(runs), strict=True)]
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)


def profile(run: Run, metric: str, *, step: int | None, stream: str | None, variant: Mapping[str, Any]) -> pd.DataFrame:
    """One metric over layers; see `Run.profile`."""
    frame = of_metric(run.frame(), metric)
    frame = frame[frame["layer"].notna() & frame["index"].isna() & frame["head"].isna()]
    if not len(frame):
        raise InputError(f"{metric} has no single number per layer. Use run.plot({metric!r}) or run.frame().")
    chosen = frame["stream"].iloc[0] if stream is None else stream
    frame = frame[frame["stream"] == chosen]
    frame = frame[frame["step"] == (frame["step"].max() if step is None else step)]
    wanted = canonical(dict(variant or headline_variant(run.metrics()[metric])))
    texts = frame["variant"].astype(str)
    frame = frame[texts == (wanted if wanted in set(texts) or variant else texts.iloc[0] if len(texts) else wanted)]
    if not len(frame):
        raise InputError(f"{metric} has no values there. Choose another step, stream or variant; see run.frame().")
    values = frame.pivot_table(index="layer", columns="tokens", values="value", sort=True, dropna=False)
    policies = [name for name in ("all", "no-sink") if name in values]
    others = sorted({str(name) for name in values} - set(policies))
    by_layer = frame[frame["tokens"] == (policies or others)[-1]].set_index("layer")
    out = values[[*policies, *others]].join(by_layer[["low", "high", "null"]])
    out.columns.name = None
    return out


def plot(run: Run, metric: str | None, *, kind: str | None, colour: str | None, pick: Mapping[str, Any]) -> Any:
    """A chart of a metric; if none is named, the cosines of embeddings, or the hero chart of the run's report."""
    from anisoscope.report.charts import plot as chart
    from anisoscope.report.cosine_chart import cosine_chart
    from anisoscope.report.summary import hero_chart

    if metric is None and run.info.get("kind") == "embeddings" and run.info.get("complete"):
        return cosine_chart(run.info["embeddings"])
    return hero_chart([run]) if metric is None else chart([run], metric, kind=kind, colour=colour, pick=pick)


def show(run: Run, *, full: bool) -> None:
    """Print a run; see `Run.show`."""
    from rich.console import Console

    Console().print(rendered(run, full=full))


def rendered(run: Run, *, full: bool = False) -> RenderableType:
    """Return what the terminal shows of a run, by its kind.

    Raises:
        InputError: The run has no records yet.
    """
    from anisoscope.report.embedding_summary import embedding_summary
    from anisoscope.report.overview import overview
    from anisoscope.report.sensitivity_summary import sensitivity_tables
    from anisoscope.report.similarity_summary import similarity_table

    table = table_of([run])
    if not len(table):
        raise InputError(f"{run.name} has no records yet. Measure something first.")
    kind = None if full or not run.info.get("complete") else run.info.get("kind")
    if kind == "similarity":
        return similarity_table(list(run.records()), run.info)
    if kind == "sensitivity":
        return sensitivity_tables(run.records(), run.info)
    if kind == "embeddings":
        return embedding_summary(list(run.records()), run.info["embeddings"], run.name)
    return overview(table, run.info, run.name, full=full)


def html(run: Run) -> str:
    """What a notebook shows of a run: the thesis, the tiles and the hero chart of its report."""
    from anisoscope.report.summary import summary_html

    return f"<p>{escape(repr(run))}</p>" if run.is_empty else summary_html([run])


def write_report(runs: Run | Sequence[Run], path: str | Path) -> Path:
    """Write one or more runs as one .html page; see `anisoscope.report`."""
    from anisoscope.report.page import write_report as write

    return write(list(runs) if isinstance(runs, list | tuple) else [runs], path)  # type: ignore[list-item]


def compare(first: Run, second: Run, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Compare two runs: the difference of every number that both have, with its error.

    Layers are matched by their relative depth if the models differ in depth. Errors are paired if both runs measured
    the same tokens.

    Args:
        first: A run.
        second: Another run; differences are second minus first.
        metrics: Metrics by name. Default: all that both have.

    Returns:
        One row per site, metric, token policy and variant.

    Example:
        >>> anisoscope.compare(run_a, run_b).query("metric == 'isoscore'")     # doctest: +SKIP
    """
    from anisoscope.report.compare import compare as differences
    from anisoscope.report.compare import difference_frame

    return difference_frame(differences(first, second, metrics))


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
