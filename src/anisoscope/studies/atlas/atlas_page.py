"""The page of the atlas: one self-contained HTML file, and the same in Markdown for the documentation."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence, Set

from markupsafe import Markup, escape

from anisoscope.studies.atlas.atlas_details import ROUNDED, anchor, model_details, moved_metrics, rounded_mark
from anisoscope.studies.atlas.atlas_findings import findings
from anisoscope.studies.atlas.atlas_registry import registry
from anisoscope.studies.atlas.atlas_scatter import scatter_svg
from anisoscope.studies.atlas.atlas_style import SCRIPT, STYLE
from anisoscope.studies.atlas.atlas_svg import half_depth, profile_svg
from anisoscope.studies.atlas.claim_matrix import FAILS, HOLDS, MATRIX, MatrixVerdict, matrix
from anisoscope.studies.atlas.evidence import ModelEvidence
from anisoscope.studies.atlas.quantisation import Shift
from anisoscope.studies.atlas.reruns import Rerun

DRAWN = ("spectral_anisotropy", "mean_cosine", "two_nn", "isoscore")
COLUMNS = (
    *("model", "family", "kind", "data", "parameters, million", "layers", "width", "precision", "tokens", "check"),
    *("processor time, s", "MiB beyond weights", "licence", "package"),
)
_INTRODUCTION = (
    "Every trained model that installs by package name, measured with the same instrument. Each model must pass a",
    "known-good check first, and has an untrained twin: the same configuration, initial weights.",
    "[atlas.html](atlas.html) is the same page with pictures: layer profiles, all models in one scatter, and a report",
    "of each model one click away.",
    "",
    "```sh",
    "make atlas                                             # download, check, measure, draw; resumable",
    "make atlas MODELS=stories15M                           # one model",
    "anisoscope atlas add ./my-model --text corpus.jsonl    # put your own model into the picture",
    "anisoscope atlas show --metric spectral_anisotropy     # one metric of all models",
    "anisoscope atlas report stories15M                     # the report of one model, after `atlas run`",
    "anisoscope atlas page --html atlas.html                # the page, with your own models",
    "```",
    "",
    "Packages are pinned by checksum and size, and none of their code runs. Nothing of them is redistributed; licences",
    "are those that the packages state. *All tokens* and *no-sink* are the library's token policies. Error bars come",
    "from a jackknife over blocks of documents. Tokens are counted at half depth: patches of images, frames of sound.",
    "Processor time is that of all measurements of a model, trained and untrained, on each input; – if not recorded.",
)
_LONG = Markup(" class=long")  # a cell that needs several lines
_AGAIN = (
    "`anisoscope atlas run stories15M --out again/results --cache again/cache` downloads, builds, checks and measures",
    "a model in new folders, and compares every value with the evidence that comes with the library.",
)
_LEGEND = (
    f"{ROUNDED} marks a metric that rounding weights to four bits moves by more than its error, of a model whose "
    "weights are rounded."
)


def atlas_html(models: Sequence[ModelEvidence], shifts: Sequence[Shift] = (), reruns: Sequence[Rerun] = ()) -> str:
    """Return the page as one HTML file: nothing is loaded from elsewhere, and no text of a model becomes HTML."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    moved = moved_metrics(shifts)
    sentences = Markup("").join(Markup("<li>{}</li>").format(_bold(text)) for text in findings(models, shifts))
    grids = Markup("").join(_grid(models, metric, moved, shown=metric == DRAWN[0]) for metric in DRAWN)
    options = Markup("").join(Markup("<option>{}</option>").format(metric) for metric in DRAWN)
    claims = Markup("").join(Markup("<li><b>{}</b> {}</li>").format(row.id, row.statement) for row in MATRIX)
    return str(
        Markup(
            '<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{}">'
            '<meta name=viewport content="width=device-width"><title>The atlas of anisoscope</title><style>{}</style>'
            "<h1>The atlas: the geometry of trained models</h1>"
            "<p>Made by <code>anisoscope atlas page</code> from committed evidence. Nothing of the models is "
            "redistributed; models without a stated licence are marked. A click on a model opens its report.</p>"
            "<h2>Findings</h2><ul>{}</ul>"
            "<h2>Layer profiles</h2><p><label>Metric <select id=metric>{}</select></label> "
            "<span class=key><i class=no-sink></i>no-sink, with error bars</span> "
            "<span class=key><i class=all></i>all tokens</span> "
            "<span class=key><i class=untrained></i>untrained twin, no-sink</span></p>"
            "<p>Depth runs from the embedding to the last layer; each picture has its own scale. Convolutional models "
            "are drawn with all positions. {}</p>{}"
            "<h2>All models</h2><p>At half depth, without sinks, with error bars; convolutional models with all "
            "positions. A thin line leads to the untrained twin (hollow).</p><div class=wide>{}</div>"
            "<h2>Models</h2>{}"
            "<h2>Claims × models</h2><ul>{}</ul>{}"
            "<h2>What rounding weights does</h2>{}{}"
            "<h2>Reports</h2>{}"
            "<script>{}</script></html>"
        ).format(
            policy,
            Markup(STYLE),
            sentences,
            options,
            _LEGEND if any(rounded_mark(m, metric, moved) for m in models for metric in moved) else "",
            grids,
            scatter_svg(models),
            _table(COLUMNS, [model_row(model) for model in models], links=[model.name for model in models]),
            claims,
            _matrix_table(models),
            _rounding_part(models, shifts) if shifts else "Not measured.",
            Markup("<h2>Measured again</h2><ul>{}</ul>").format(
                Markup("").join(Markup("<li>{}</li>").format(_bold(rerun.text)) for rerun in reruns)
            )
            if reruns
            else "",
            Markup("").join(model_details(model, moved) for model in models),
            Markup(SCRIPT),
        )
    )


def atlas_markdown(models: Sequence[ModelEvidence], shifts: Sequence[Shift] = (), reruns: Sequence[Rerun] = ()) -> str:
    """Return the page in Markdown: findings, the table of models, the matrix of claims, and the study of rounding."""
    moved = moved_metrics(shifts)
    lines = ["# The atlas: the geometry of trained models", "", *_INTRODUCTION, "", "## Findings", ""]
    lines += [f"- {text}" for text in findings(models, shifts)]
    lines += ["", "## Models", "", *_pipes(COLUMNS, [model_row(model) for model in models]), ""]
    lines += ["## Half depth, without sinks", ""]
    lines += _pipes(
        ("model", *DRAWN, *(f"{metric}, untrained" for metric in DRAWN)), [_half_row(m, moved) for m in models]
    )
    if any(rounded_mark(model, metric, moved) for model in models for metric in DRAWN):
        lines += ["", _LEGEND]
    lines += ["", "## Claims × models", ""]
    lines += [
        "Each cell is judged on the stored profiles of one model, by the rules and the judge of [claims](claims.md).",
        "",
    ]
    judged = matrix(models)
    lines += [f"- **{row.id}**: {row.statement}" for row, _ in judged]
    rows = [(model.name, *(verdicts[i].answer for _, verdicts in judged)) for i, model in enumerate(models)]
    lines += ["", *_pipes(("model", *(row.id for row, _ in judged)), rows), ""]
    if shifts:
        lines += ["## What rounding weights does", ""]
        lines += [line for note in _rounding_notes(models, shifts) for line in (note, "")]
        lines += [*_pipes(*shift_table(shifts)), ""]
    if reruns:
        lines += ["## Measured again from nothing", "", *_AGAIN, "", *(f"- {rerun.text}" for rerun in reruns), ""]
    lines += [
        "## Inputs",
        "",
        *sorted({f"- **{n}**: {i['describes']}" for m in models for n, i in m.inputs.items()}),
        "",
        *_not_measured(models),
    ]
    return "\n".join(lines)


def _not_measured(models: Sequence[ModelEvidence]) -> list[str]:
    """Return the part of the page on models of the registry that have no evidence; empty if all have some."""
    measured = {model.name for model in models}
    absent = [name for name in registry().models if name not in measured]
    if not absent:
        return []
    words = "These models are in the registry, but have no evidence yet. `anisoscope atlas run NAME` measures one:"
    return ["## Not measured yet", "", f"{words} {', '.join(absent)}.", ""]


def shift_table(shifts: Sequence[Shift]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows: what rounding changes, one row per metric and token policy, one column per model."""
    columns = list(dict.fromkeys((shift.model, shift.kind) for shift in shifts))
    rows = list(dict.fromkeys((shift.metric, shift.tokens) for shift in shifts))
    cells = {(shift.metric, shift.tokens, shift.model, shift.kind): _shift_cell(shift) for shift in shifts}
    header = ("metric", "tokens", *(f"{model}, {kind}" for model, kind in columns))
    return header, [(*row, *(cells.get((*row, *column), "–") for column in columns)) for row in rows]


def _shift_cell(shift: Shift) -> str:
    errors = f"{shift.errors:.2g} errors"
    return f"{shift.change:.2g} ({f'**{errors}**' if shift.moved else errors})"


def _rounding_notes(models: Sequence[ModelEvidence], shifts: Sequence[Shift]) -> list[str]:
    """Return what the table of rounding shows, and what the checks of the rounded models give."""
    notes = [
        "Each cell is the median over the layers of the change, and the same in error bars of the exact value; bold if "
        "it exceeds one error bar. Blocks of 32 weights share a scale, as in a GGUF file."
    ]
    checks = {(shift.model, shift.kind): shift.check for shift in shifts if shift.check}
    exact = {model.name: model.check for model in models}
    for name in dict.fromkeys(model for model, _ in checks):
        rounded = "; ".join(f"{kind} {check}" for (model, kind), check in checks.items() if model == name)
        notes.append(f"Check of {name}: exact {exact.get(name, 'not measured')}; {rounded}.")
    return notes


def model_row(model: ModelEvidence) -> tuple[str, ...]:
    """Return the cells of a row of the table of models."""
    tokens = model.inputs[model.domain].get("tokens", 0)
    return (
        model.name,
        model.family,
        model.kind,
        model.modality,
        f"{model.parameters / 1e6:.3g}",
        str(model.depth),
        str(model.width or "varies"),
        model.precision,
        f"{tokens:,}",
        model.check,
        "–" if model.seconds is None else f"{model.seconds:,}",
        f"{model.memory:,}",
        f"**{model.licence}**" if model.licence.startswith("none") else model.licence,
        ", ".join(model.packages),
    )


def _half_row(model: ModelEvidence, moved: Set[str]) -> tuple[str, ...]:
    cells = []
    for state in ("trained", "untrained"):
        for metric in DRAWN:
            point = half_depth(model, metric, state)
            error = "" if point is None or point[2] is None else f" ± {point[2]:.2g}"
            mark = rounded_mark(model, metric, moved) if state == "trained" else ""
            cells.append("–" if point is None else f"{point[1]:.3g}{error}{mark}")
    return (model.name, *cells)


def _pipes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], links: Sequence[str] = ()) -> Markup:
    """Return a table that is sorted by a click on a column; the first cells link to the reports of `links`."""
    head = Markup("").join(Markup("<th><button type=button>{}</button></th>").format(cell) for cell in header)
    body = []
    for number, row in enumerate(rows):
        cells = [Markup("<td{}>{}</td>").format(_LONG if len(cell) > 20 else "", _bold(_joined(cell))) for cell in row]
        if links:
            cells[0] = Markup("<td>{}</td>").format(_link(links[number]))
        body.append(Markup("<tr>{}</tr>").format(Markup("").join(cells)))
    return Markup(
        "<div class=wide><table class=sortable><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(head, Markup("").join(body))


def _joined(cell: str) -> str:
    """Keep a sign and its limit on one line."""
    return re.sub("([≤≥]) ", "\\1\u00a0", cell)


def _rounding_part(models: Sequence[ModelEvidence], shifts: Sequence[Shift]) -> Markup:
    notes = Markup("").join(Markup("<p>{}</p>").format(note) for note in _rounding_notes(models, shifts))
    return notes + _table(*shift_table(shifts))


def _link(name: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(anchor(name), name)


def _matrix_table(models: Sequence[ModelEvidence]) -> Markup:
    judged = matrix(models)
    heads = [Markup('<th title="{}">{}</th>').format(row.statement, row.id) for row, _ in judged]
    rows = []
    for index, model in enumerate(models):
        cells = [_matrix_cell(verdicts[index]) for _, verdicts in judged]
        rows.append(Markup("<tr><td>{}</td>{}</tr>").format(_link(model.name), Markup("").join(cells)))
    body = Markup("").join(rows)
    return Markup(
        "<div class=wide><table><thead><tr><th>model</th>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(Markup("").join(heads), body)


def _matrix_cell(verdict: MatrixVerdict) -> Markup:
    kind = {HOLDS: "holds", FAILS: "fails"}.get(verdict.answer, "open")
    return Markup('<td class="{}" title="{}">{}</td>').format(kind, verdict.text, verdict.answer)


def _grid(models: Sequence[ModelEvidence], metric: str, moved: Set[str], *, shown: bool) -> Markup:
    figures = [
        Markup("<figure>{}<figcaption><b>{}</b>{} {} · {}</figcaption></figure>").format(
            profile_svg(model, metric),
            _link(model.name),
            rounded_mark(model, metric, moved),
            model.kind,
            model.modality,
        )
        for model in models
    ]
    return Markup('<div class=grid data-metric="{}"{}>{}</div>').format(
        metric, Markup("") if shown else Markup(" hidden"), Markup("").join(figures)
    )


def _bold(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text))))
