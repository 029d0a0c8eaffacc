"""The page of the atlas: one self-contained HTML file, and the same in Markdown for the documentation."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from anisoscope.studies.atlas.atlas_findings import findings
from anisoscope.studies.atlas.atlas_svg import half_depth, profile_svg, scatter_svg
from anisoscope.studies.atlas.claim_matrix import FAILS, HOLDS, MatrixVerdict, matrix
from anisoscope.studies.atlas.evidence import ModelEvidence
from anisoscope.studies.atlas.quantisation import Shift

DRAWN = ("spectral_anisotropy", "mean_cosine", "two_nn", "isoscore")
COLUMNS = (
    *("model", "family", "kind", "data", "parameters", "layers", "width", "precision", "licence", "package"),
    *("check", "tokens", "seconds", "MiB beyond weights"),
)
_INTRODUCTION = (
    "Every trained model that installs by package name, measured with the same instrument. Each model must pass a",
    "known-good check first, and has an untrained twin: the same configuration, initial weights.",
    "[atlas.html](atlas.html) is the same page with pictures: layer profiles, and all models in one scatter.",
    "",
    "```sh",
    "make atlas                                             # download, check, measure, draw; resumable",
    "anisoscope atlas run stories15M --out runs/atlas       # one model from nothing",
    "anisoscope atlas add ./my-model --text corpus.jsonl    # put your own model into the picture",
    "anisoscope atlas show --metric spectral_anisotropy     # one metric of all models",
    "anisoscope atlas report stories15M                     # the report of one model, after `atlas run`",
    "anisoscope atlas page --html atlas.html                # the page, with your own models",
    "```",
    "",
    "Packages are pinned by checksum and size, and none of their code runs. Nothing of them is redistributed; licences",
    "are those that the packages state. *All tokens* and *no-sink* are the library's token policies. Error bars come",
    "from a jackknife over blocks of documents. Times are those of one core of a busy machine.",
)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1,h2{line-height:1.2} table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{padding:.25rem .5rem;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap} th{cursor:pointer}
th[aria-sort=ascending]::after{content:" ▲"} th[aria-sort=descending]::after{content:" ▼"}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:.5rem}
.grid[hidden]{display:none} figure{margin:0} figcaption{font-size:13px}
svg{width:100%;height:auto} .line{fill:none;stroke-width:2}
.line.all{stroke:#9cc9e6}.line.no-sink{stroke:#0072B2}.line.untrained{stroke:#b5b5b5;stroke-width:1.5}
.error{stroke:#0072B2}.axis{fill:none;stroke:#888}.tick{font-size:10px;fill:#57606a}.label{font-size:11px;fill:#333}
.holds{background:#d9f2e6}.fails{background:#fbe3d6}.open{color:#999} code{background:#f2f4f6;padding:.1em .3em}
"""
_SCRIPT = """
const number = text => { const m = text.replace(/[, ]/g, "").match(/-?[0-9.]+/); return m ? parseFloat(m[0]) : NaN; };
document.querySelectorAll("table.sortable th").forEach((th, column) => th.addEventListener("click", () => {
  const table = th.closest("table"), body = table.tBodies[0], down = th.getAttribute("aria-sort") === "ascending";
  const key = row => row.cells[column].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const x = number(key(a)), y = number(key(b));
    const order = isNaN(x) || isNaN(y) || column < 4 ? key(a).localeCompare(key(b)) : x - y;
    return down ? -order : order;
  });
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}));
const choose = document.querySelector("#metric");
if (choose) choose.addEventListener("change", () => document.querySelectorAll(".grid").forEach(
  grid => { grid.hidden = grid.dataset.metric !== choose.value; }));
"""


def atlas_html(models: Sequence[ModelEvidence], shifts: Sequence[Shift] = ()) -> str:
    """Return the page as one HTML file: nothing is loaded from elsewhere, and no text of a model becomes HTML."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    sentences = Markup("").join(Markup("<li>{}</li>").format(_bold(text)) for text in findings(models, shifts))
    grids = Markup("").join(_grid(models, metric, shown=metric == DRAWN[0]) for metric in DRAWN)
    options = Markup("").join(Markup("<option>{}</option>").format(metric) for metric in DRAWN)
    return str(
        Markup(
            '<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{}">'
            '<meta name=viewport content="width=device-width"><title>The atlas of anisoscope</title><style>{}</style>'
            "<h1>The atlas: the geometry of trained models</h1>"
            "<p>Made by <code>anisoscope atlas page</code> from committed evidence. Nothing of the models is "
            "redistributed; models without a stated licence are marked.</p>"
            "<h2>Findings</h2><ul>{}</ul>"
            "<h2>Models</h2>{}"
            "<h2>Layer profiles</h2><p><label>Metric <select id=metric>{}</select></label> Solid: no-sink with error "
            "bars. Light: all tokens. Grey: untrained twin, no-sink. Depth runs from the embedding to the last layer; "
            "each picture has its own scale.</p>{}"
            "<h2>All models</h2><p>Hollow: untrained twins.</p>{}"
            "<h2>Claims × models</h2>{}"
            "<h2>What rounding weights does</h2>{}"
            "<script>{}</script></html>"
        ).format(
            policy,
            Markup(_STYLE),
            sentences,
            _table(COLUMNS, [model_row(model) for model in models], "sortable"),
            options,
            grids,
            scatter_svg(models),
            _matrix_table(models),
            _table(SHIFT_COLUMNS, [shift_row(shift) for shift in shifts], "sortable") if shifts else "Not measured.",
            Markup(_SCRIPT),
        )
    )


def atlas_markdown(models: Sequence[ModelEvidence], shifts: Sequence[Shift] = ()) -> str:
    """Return the page in Markdown: findings, the table of models, the matrix of claims, and the study of rounding."""
    lines = ["# The atlas: the geometry of trained models", "", *_INTRODUCTION, "", "## Findings", ""]
    lines += [f"- {text}" for text in findings(models, shifts)]
    lines += ["", "## Models", "", *_pipes(COLUMNS, [model_row(model) for model in models]), ""]
    lines += ["## Half depth, without sinks", ""]
    lines += _pipes(("model", *DRAWN, *(f"{metric}, untrained" for metric in DRAWN)), [_half_row(m) for m in models])
    lines += ["", "## Claims × models", ""]
    lines += [
        "Each cell is judged on the stored profiles of one model; `studies/atlas/claim_matrix.py` has the rules.",
        "",
    ]
    judged = matrix(models)
    lines += [f"- **{row.id}**: {row.statement}" for row, _ in judged]
    rows = [(model.name, *(verdicts[i].answer for _, verdicts in judged)) for i, model in enumerate(models)]
    lines += ["", *_pipes(("model", *(row.id for row, _ in judged)), rows), ""]
    if shifts:
        lines += ["## What rounding weights does", ""]
        lines += ["A metric is marked if rounding moves it by more than its error bar at the median layer.", ""]
        lines += [*_pipes(SHIFT_COLUMNS, [shift_row(shift) for shift in shifts]), ""]
    lines += [
        "## Inputs",
        "",
        *sorted({f"- **{n}**: {i['describes']}" for m in models for n, i in m.inputs.items()}),
        "",
    ]
    return "\n".join(lines)


SHIFT_COLUMNS = ("model", "rounding", "metric", "tokens", "median change", "in error bars", "layers moved", "moved")


def shift_row(shift: Shift) -> tuple[str, ...]:
    """Return the cells of a row of the table of rounding."""
    numbers = (f"{shift.change:.2g}", f"{shift.errors:.2f}", f"{shift.layers:.0%}")
    return (shift.model, shift.kind, shift.metric, shift.tokens, *numbers, "**yes**" if shift.moved else "no")


def model_row(model: ModelEvidence) -> tuple[str, ...]:
    """Return the cells of a row of the table of models."""
    tokens = model.inputs[model.domain].get("tokens", 0)
    return (
        model.name,
        model.family,
        model.kind,
        model.modality,
        f"{model.parameters:,}",
        str(model.depth),
        str(model.width or "varies"),
        model.precision,
        model.licence,
        ", ".join(model.packages),
        model.check,
        f"{tokens:,}",
        f"{model.seconds:,}",
        f"{model.memory:,}",
    )


def _half_row(model: ModelEvidence) -> tuple[str, ...]:
    cells = []
    for state in ("trained", "untrained"):
        for metric in DRAWN:
            point = half_depth(model, metric, state)
            error = "" if point is None or point[2] is None else f" ± {point[2]:.2g}"
            cells.append("–" if point is None else f"{point[1]:.3g}{error}")
    return (model.name, *cells)


def _pipes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> Markup:
    head = Markup("").join(Markup("<th>{}</th>").format(cell) for cell in header)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(_bold(cell)) for cell in row))
        for row in rows
    )
    return Markup("<table class={}><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(kind, head, body)


def _matrix_table(models: Sequence[ModelEvidence]) -> Markup:
    judged = matrix(models)
    heads = [Markup('<th title="{}">{}</th>').format(row.statement, row.id) for row, _ in judged]
    rows = []
    for index, model in enumerate(models):
        cells = [_matrix_cell(verdicts[index]) for _, verdicts in judged]
        rows.append(Markup("<tr><td>{}</td>{}</tr>").format(model.name, Markup("").join(cells)))
    body = Markup("").join(rows)
    return Markup("<table><thead><tr><th>model</th>{}</tr></thead><tbody>{}</tbody></table>").format(
        Markup("").join(heads), body
    )


def _matrix_cell(verdict: MatrixVerdict) -> Markup:
    kind = {HOLDS: "holds", FAILS: "fails"}.get(verdict.answer, "open")
    return Markup('<td class="{}" title="{}">{}</td>').format(kind, verdict.text, verdict.answer)


def _grid(models: Sequence[ModelEvidence], metric: str, *, shown: bool) -> Markup:
    figures = [
        Markup(
            "<figure>{}<figcaption><b>{}</b> {} · {}<br><code>anisoscope atlas report {}</code></figcaption></figure>"
        ).format(profile_svg(model, metric), model.name, model.kind, model.modality, model.name)
        for model in models
    ]
    return Markup("<div class=grid data-metric={}{}>{}</div>").format(
        metric, Markup("") if shown else Markup(" hidden"), Markup("").join(figures)
    )


def _bold(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text))))
