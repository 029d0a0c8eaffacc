"""Tables of the commands `tangent` and `curvature`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from anisoscope.records import Record
    from anisoscope.report.tangent_summary import TangentSummary

_LONG = 12  # characters of a site's name in a table
_NONE = "[dim]–[/]"
_CONCEPTS = 8  # shown per site


def tangent_table(records: Sequence[Record], info: Mapping[str, Any], rank: int, title: str) -> RenderableType:
    """Three tables with one row per site and proxy at one rank: verdicts, energies, p and q by null."""
    from anisoscope.report.tangent_summary import summarise

    verdicts = _table(f"{title}: verdicts, rank {rank}", "site", "proxy", "E/level", "95 %", "verdict")
    energies = _table(
        "gradient energy",
        *("site", "proxy", "E", "E unit", "chance"),
        wrapped=("normal", "E/normal", "ceiling"),
    )
    tests = _table("p/q under each null", "site", "proxy", "random", "coord.", "β", "p/q", "local", "p/q", space=0)
    gradient = None
    for summary in summarise(records):
        if summary.rank != rank and summary.proxy != "mean":
            continue
        if summary.gradient != gradient:
            gradient = summary.gradient
            for table in (verdicts, energies, tests):
                table.add_section()
                table.add_row(f"[bold]{gradient}[/]")
        name = escape(_site_name(summary.site))
        verdicts.add_row(name, summary.proxy, _ratio(summary.enrichment), _interval(summary), summary.verdict)
        numbers = (summary.unit_energy.value, summary.energy.null, summary.normal, summary.ratio, summary.ceiling)
        energies.add_row(name, summary.proxy, _with_error(summary.energy), *map(_short, numbers))
        tests.add_row(
            name,
            summary.proxy,
            _p_and_q(summary, "error_shuffle" if summary.gradient == "weight_in" else "orientation"),
            _p_and_q(summary, "coordinates"),
            _signed(summary.slope),
            _p_and_q(summary, "transfer_slope"),
            _signed(summary.local),
            _p_and_q(summary, "local_test"),
        )
    facts = info["tangent"]
    note = (
        "E/level: energy over that of a random subspace (chance, r/d), or for weight_in over that of shuffled errors, "
        "with its 95 % interval. It names the effect: below 1.25 hardly any, below 2 weak, below 5 clear, else strong. "
        f"E: share of the gradients' squared length in the basis ± one standard error over blocks of {info['unit']}; "
        "E unit: with each gradient scaled to length one. chance: r/d. normal: 20 random subspaces orthogonal to the "
        "basis; E/normal is a transform of E. ceiling: the gradients' own directions from other documents. random: "
        "Haar subspaces, or for weight_in errors shuffled over tokens. coord.: permuted coordinates. β: slope of "
        "gradient energy on variance over axes. local: excess of the own patch's basis. p and q (Benjamini–Hochberg) "
        "are the larger ones of plain and unit rows; 0+ is below 0.0005. "
        f"Loss {facts['loss']}; fitted on {facts['fit tokens']:,} tokens, tested on {facts['test tokens']:,} others."
    )
    return Group(verdicts, energies, tests, Text(note, style="dim"))


def concepts_table(info: Mapping[str, Any], rank: int) -> RenderableType:
    """The strongest concepts of each site in words: typical tokens, and contexts that load most."""
    tables: list[RenderableType] = []
    for name, concepts in info.get("concepts", {}).items():
        if not name.endswith(f" {rank}"):
            continue
        table = Table(title=f"concepts at {name}", box=box.SIMPLE_HEAD, title_justify="left")
        for column in ("share", "tokens", "contexts"):
            table.add_column(column, justify="right" if column == "share" else "left")
        for concept in concepts[:_CONCEPTS]:
            words = " · ".join(escape(repr(token)) for token in concept["tokens"])
            table.add_row(f"{concept['share']:.3f}", words, "\n".join(escape(repr(c)) for c in concept["contexts"]))
        tables.append(table)
    return Group(*tables)


def curvature_table(records: Sequence[Record]) -> RenderableType:
    """One row per setting, then the slope and both forms of the bound."""
    names = ("curvature_visibility", "pca_residual", "curvature_snr", "effective_tokens", "curvature_drop")
    table = _table("Curvature in a sample", "s", "γ", "V", "PCA", "SNR", "n_eff", "same n_eff", "drop")
    rows: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        if record.metric in names:
            rows.setdefault(tuple(record.variant.items()), {})[record.metric] = record
    for variant, by_metric in rows.items():
        setting = dict(variant)
        table.add_row(
            f"{setting['s']:g}",
            f"{setting['gamma']:g}" + (", κ = 0" if "kappa" in setting else ""),
            _with_error(by_metric["curvature_visibility"]),
            _short(by_metric["pca_residual"].value),
            _with_error(by_metric["curvature_snr"]),
            f"{by_metric['effective_tokens'].value:.0f}",
            _short(by_metric["curvature_snr"].null),
            _with_error(by_metric["curvature_drop"]) if "curvature_drop" in by_metric else _NONE,
        )
    slope = next(record for record in records if record.metric == "curvature_slope")
    bounds = _table(
        "Normal ÷ tangent of the gradient at x = (u, u²), w = 0, y = −1", "radius t", "second moment", "mean"
    )
    for record in records:
        if record.metric == "gradient_bound" and record.variant["moment"] == "second":
            bounds.add_row(f"{record.variant['t']:g}", _short(record.value), "unbounded")
    note = (
        f"Slope of log(tr Σ_N/tr Σ_T) on log t: {slope.value:.3f} ± {slope.error:.3f} (theory: 2). s: types are drawn "
        "with p ∝ k^−s; γ: frequent types are pinned, t ∝ k^γ. V: tr Σ_N/tr Σ in the true axes; PCA: the share outside "
        "its leading axes. SNR: normal variance that a quadratic of the tangent part explains, over the rest. "
        "same n_eff: the SNR of an unpinned cloud with the effective number of tokens of the pinned one; drop: against "
        "it, in pairs of seeds. The bound falls as t² for second moments and does not exist for the mean."
    )
    return Group(table, bounds, Text(note, style="dim"))


def _table(title: str, *columns: str, wrapped: Sequence[str] = (), space: int = 1) -> Table:
    """A table of numbers; columns of text are on the left, and those in `wrapped` may break.

    `space` is what separates columns besides the one character of the box: a wide table has none.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, space, 0, 0))
    for name in columns:
        text = name in ("site", "proxy", "verdict")
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for name in wrapped:
        table.add_column(name, justify="right")
    return table


def _site_name(site: str) -> str:
    """A short name of a site: of a module's path only the number of its layer and the last part."""
    name = site.removeprefix("grad.").removeprefix("weight.")
    parts = name.split(".")
    number = [part for part in parts[:-1] if part.isdigit()][:1]
    return name if len(name) <= _LONG else ".".join((*number, parts[-1]))


def _short(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _interval(summary: TangentSummary) -> str:
    if summary.interval is None:
        return _NONE
    low, high = summary.interval
    return f"{_ratio(low)}–{_ratio(high)}"


def _with_error(record: Record) -> str:
    """The value and its error, with the same number of decimals."""
    if record.value is None or record.error is None:
        return _short(record.value)
    error = f"{record.error:.3f}" if abs(record.value) < 10 else f"{record.error:.1f}"
    return f"{_short(record.value)}[dim]±{error.removeprefix('0')}[/]"


def _p_and_q(summary: TangentSummary, null: str) -> str:
    if null not in summary.p:
        return _NONE
    return f"{_probability(summary.p[null])}/{_probability(summary.q[null])}"


def _probability(p: float) -> str:
    return "0+" if p < 0.0005 else "1" if p > 0.9995 else f"{p:.3f}".lstrip("0")


def _signed(record: Record | None) -> str:
    return _NONE if record is None or record.value is None else f"{record.value:+.3f}"
