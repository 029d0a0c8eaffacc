"""`tangent` and `curvature`: do directions of activations carry the gradient, and what samples show of a curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.cli.app import AsJson, app, command_line, progress_bar, stderr, stdout
from anisoscope.errors import InputError, first_line
from anisoscope.store.files import read_json

_LONG = 12  # characters of a site's name in a table


@app.command(
    epilog="""Examples:

    anisoscope tangent ./smollm --text corpus.txt --rank 32

    anisoscope tangent ./model --text corpus.txt --ranks 8,16,32,64 --proxies pca,semi_nmf --step-0 ./init --out runs/t
"""
)
def tangent(
    source: Annotated[str, typer.Argument(help="A model with its output head: folder, hub id, .gguf.")],
    text: Annotated[str, typer.Option(help="Text: file, folder, .jsonl, - or datasets:NAME; half fits, half tests.")],
    rank: Annotated[int, typer.Option(min=1, help="The rank that the table shows.")] = 32,
    ranks: Annotated[str | None, typer.Option(help="All ranks to test, with commas; the one shown by default.")] = None,
    proxies: Annotated[str, typer.Option(help="pca, semi_nmf, svd, mean, with commas.")] = "pca,semi_nmf",
    nulls: Annotated[str, typer.Option(help="all, or names with commas.")] = "all",
    gradients: Annotated[
        str, typer.Option(help="hidden, weight_in, weight_out, embedding, with commas.")
    ] = "hidden,weight_in,weight_out,embedding",
    sites: Annotated[str, typer.Option(help="Where: resid, embed, or sites, with commas.")] = "resid",
    loss: Annotated[str | None, typer.Option(help="next_token or masked_token; by the model's head.")] = None,
    tokens: Annotated[int, typer.Option(min=64, help="How many tokens to fit on, and to test on.")] = 8192,
    window: Annotated[int | None, typer.Option(min=2, help="Tokens a window; 512, or what the model allows.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows a forward pass.")] = 4,
    field: Annotated[str | None, typer.Option(help="The field of .jsonl or .parquet rows that holds the text.")] = None,
    document_mark: Annotated[str | None, typer.Option(help="What stands between documents of a plain text.")] = None,
    step_0: Annotated[str | None, typer.Option("--step-0", help="The same model before training.")] = None,
    other_run: Annotated[str | None, typer.Option(help="The same model from another seed.")] = None,
    earlier: Annotated[str | None, typer.Option(help="An earlier step: how far has it moved along the bases?")] = None,
    counts: Annotated[Path | None, typer.Option(help="A .json table of token ids and their counts.")] = None,
    balance: Annotated[int | None, typer.Option(min=1, help="Most occurrences of a token type in the fit.")] = None,
    sinks: Annotated[bool, typer.Option(help="Count first tokens of windows and massive tokens too.")] = False,
    revision: Annotated[str | None, typer.Option(help="A revision of a hub model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
    concepts: Annotated[bool, typer.Option(help="Print the concepts of semi-NMF in words.")] = False,
    out: Annotated[Path | None, typer.Option(help="A run folder to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Do directions fitted on activations carry the true gradient? Energies, every null, p- and q-values."""
    from anisoscope.data.batches import model_batches
    from anisoscope.models.open import open_model
    from anisoscope.tangent import Tangent
    from anisoscope.tangent.splits import split_batches
    from anisoscope.tangent.tangent_test import fit_frames, tangent_test

    asked = Tangent(
        proxies=_names(proxies),
        ranks=sorted({rank, *_ranks(ranks or "")}),
        nulls="all" if nulls == "all" else _names(nulls),
    )
    opened = open_model(source, head=True, revision=revision, device=device)
    if opened.modality != "text":
        raise InputError(
            f"{source} takes {opened.modality}; the command tests text models: call tangent_test for others"
        )
    reading: dict[str, Any] = {"window": window, "batch": batch, "field": field, "mark": document_mark}
    fit, test = split_batches(model_batches(opened, text, tokens=2 * tokens, **reading))
    given = {"step_0": step_0, "other_run": other_run}
    others = {
        name: fit_frames(
            other, fit, tangent=asked, sites=_names(sites), sinks=sinks, seed=seed, opening={"device": device}
        )
        for name, other in given.items()
        if other is not None
    }
    with progress_bar("tokens", None) as told:
        run = tangent_test(
            opened,
            fit=fit,
            test=test,
            loss=loss,
            tangent=asked,
            gradients=_names(gradients),
            sites=_names(sites),
            others=others,
            earlier=earlier,
            counts=None if counts is None else _table_of_counts(counts),
            balance=balance,
            sinks=sinks,
            seed=seed,
            out=out,
            command=command_line(),
            progress=told,
        )
    records = list(run.records())
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
        return
    stdout().print(tangent_table(records, run.info, rank, source))
    if concepts:
        stdout().print(concepts_table(run.info, rank))
    if out is not None:
        stderr().print(f"run written to {escape(str(out))}")


@app.command(epilog="Example:\n\n    anisoscope curvature --seeds 12")
def curvature(
    seeds: Annotated[int, typer.Option(min=4, help="Paired seeds of every setting.")] = 12,
    tokens: Annotated[int, typer.Option(min=64, help="Tokens a cloud.")] = 4000,
    noise: Annotated[float, typer.Option(min=0, help="σ of the noise.")] = 0.02,
    kappa: Annotated[float, typer.Option(min=0, help="Spread of the second fundamental form's entries.")] = 0.1,
    as_json: AsJson = False,
) -> None:
    """The theory as a simulation: what frequency-biased samples of a curved cloud show of its curvature."""
    from anisoscope.studies.curvature import Surface, curvature_records

    records = curvature_records(Surface(tokens=tokens, noise=noise, curvature=kappa), seeds=seeds)
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
    else:
        stdout().print(curvature_table(records))


def curvature_table(records: list[Any]) -> RenderableType:
    """One row a setting; then the slope and both forms of the bound."""
    names = ("curvature_visibility", "pca_residual", "curvature_snr", "effective_tokens", "curvature_drop")
    table = _table("Curvature in a sample", "s", "γ", "V", "PCA", "SNR", "n_eff", "same n_eff", "drop")
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        if record.metric in names:
            rows.setdefault(tuple(record.variant.items()), {})[record.metric] = record
    for variant, found in rows.items():
        setting = dict(variant)
        about = f"{setting['gamma']:g}" + (", κ = 0" if "kappa" in setting else "")
        table.add_row(
            f"{setting['s']:g}",
            about,
            _with_error(found["curvature_visibility"]),
            _short(found["pca_residual"].value),
            _with_error(found["curvature_snr"]),
            f"{found['effective_tokens'].value:.0f}",
            _short(found["curvature_snr"].null),
            _with_error(found["curvature_drop"]) if "curvature_drop" in found else "[dim]–[/]",
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
        "with p ∝ k^−s; γ: frequent types are pinned, t ∝ k^γ. V: tr Σ_N/tr Σ in the true frame; PCA: the share "
        "outside its leading axes. SNR: normal variance that a quadratic of the tangent part explains, over what it "
        "leaves. same n_eff: the SNR of an unpinned cloud of as many tokens as count in the pinned one; drop: against "
        "it, in pairs of seeds. The bound falls as t² for second moments and does not exist for the mean."
    )
    return Group(table, bounds, Text(note, style="dim"))


def tangent_table(records: list[Any], info: dict[str, Any], rank: int, title: str) -> RenderableType:
    """Three tables, one row a site and proxy at one rank: energies and levels, p and q by null, and what they say."""
    from anisoscope.tangent.summary import readings

    energies = _table(f"{title}: gradient energy, rank {rank}", "site", "proxy", "E", "E unit", "chance")
    for name in ("normal", "E/normal", "ceiling"):
        energies.add_column(name, justify="right")
    tests = _table("p/q under each null", "site", "proxy", "random", "coord.", "β", "p/q", "local", "p/q")
    says = _table("what they say", "site", "proxy", "")
    gradient = None
    for r in readings(records):
        if r.rank != rank and r.proxy != "mean":
            continue
        if r.gradient != gradient:
            gradient = r.gradient
            for table in (energies, tests, says):
                table.add_section()
                table.add_row(f"[bold]{gradient}[/]")
        name = escape(_site_name(r.site))
        numbers = (r.unit_energy.value, r.energy.null, r.normal, r.ratio, r.ceiling)
        energies.add_row(name, r.proxy, _with_error(r.energy), *map(_short, numbers))
        tests.add_row(
            name,
            r.proxy,
            _chance(r, "error_shuffle" if r.gradient == "weight_in" else "orientation"),
            _chance(r, "coordinates"),
            _signed(r.slope),
            _chance(r, "transfer_slope"),
            _signed(r.local),
            _chance(r, "local_test"),
        )
        says.add_row(name, r.proxy, r.words)
    facts = info["tangent"]
    note = (
        f"E: share of the gradients' squared length in the basis ± one standard error over blocks of {info['unit']}; "
        "E unit: each gradient scaled to length one. chance: r/d. normal: 20 random subspaces orthogonal to the basis; "
        "E/normal is a transform of E. ceiling: the gradients' own directions from other documents. random: Haar "
        "subspaces, for weight_in errors shuffled over tokens. coord.: coordinates permuted. β: slope of gradient "
        "energy on variance over axes. local: excess of the own patch's basis. p and q (Benjamini–Hochberg) are the "
        f"larger of plain and unit rows. Loss {facts['loss']}; fitted on {facts['fit tokens']:,} tokens, tested on "
        f"{facts['test tokens']:,} others."
    )
    return Group(energies, tests, says, Text(note, style="dim"))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for name in columns:
        text = name in ("site", "proxy", "")
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    return table


def _site_name(site: str) -> str:
    """A site without what the table says anyway: of a module's path the block's number and its own name."""
    name = site.removeprefix("grad.").removeprefix("weight.")
    parts = name.split(".")
    number = [part for part in parts[:-1] if part.isdigit()][:1]
    return name if len(name) <= _LONG else ".".join((*number, parts[-1]))


def concepts_table(info: dict[str, Any], rank: int) -> RenderableType:
    """The strongest concepts of each site in words: typical tokens, and where they load most."""
    tables: list[RenderableType] = []
    for name, found in info.get("concepts", {}).items():
        if not name.endswith(f" {rank}"):
            continue
        table = Table(title=f"concepts at {name}", box=box.SIMPLE_HEAD, title_justify="left")
        for column in ("share", "tokens", "contexts"):
            table.add_column(column, justify="right" if column == "share" else "left")
        for concept in found[:8]:
            words = " · ".join(escape(repr(token)) for token in concept["tokens"])
            table.add_row(f"{concept['share']:.3f}", words, "\n".join(escape(repr(c)) for c in concept["contexts"]))
        tables.append(table)
    return Group(*tables)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _ranks(text: str) -> list[int]:
    try:
        return [int(rank) for rank in _names(text)]
    except ValueError as error:
        raise InputError(f"--ranks takes whole numbers with commas between, got {text!r}") from error


def _table_of_counts(path: Path) -> dict[int, int]:
    try:
        return {int(token): int(count) for token, count in read_json(path).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        told = f"{path} is no table of counts ({first_line(error)})"
        raise InputError(f'{told}; expected JSON such as {{"17": 4211}}') from None


def _short(value: float | None) -> str:
    return "[dim]–[/]" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _with_error(record: Any) -> str:
    """The value and its error, as many decimals as the value has."""
    if record.error is None:
        return _short(record.value)
    error = f"{record.error:.3f}" if abs(record.value) < 10 else f"{record.error:.1f}"
    return f"{_short(record.value)}[dim]±{error.removeprefix('0')}[/]"


def _chance(reading: Any, null: str) -> str:
    if null not in reading.p:
        return "[dim]–[/]"
    return f"{_tiny(reading.p[null])}/{_tiny(reading.q[null])}"


def _tiny(p: float) -> str:
    return "0+" if p < 0.0005 else "1" if p > 0.9995 else f"{p:.3f}".lstrip("0")


def _signed(record: Any) -> str:
    return "[dim]–[/]" if record is None or record.value is None else f"{record.value:+.3f}"
