"""Write the generated pages of docs/ (`make docs`). A test fails if a page is older than the code.

`python docs/build.py --real FOLDER` also records the block of the README that needs stories15M: its folder, which
`anisoscope atlas run stories15M` leaves in the cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # find the helpers next to this file from any folder

from api_reference import api_page
from blocks import blocks_of, refreshed, run_blocks
from cli_reference import cli_page
from reader import prepare

from anisoscope.metrics import catalogue
from anisoscope.metrics.metric import INVARIANCES, Metric
from anisoscope.report.glossary import WORDS
from anisoscope.studies.atlas.atlas_page import atlas_html, atlas_markdown
from anisoscope.studies.atlas.claim_matrix import matrix, matrix_table, verdicts_on_all
from anisoscope.studies.atlas.evidence import atlas_evidence, committed_evidence, reruns_path, study_path
from anisoscope.studies.atlas.quantisation import read_study, shifts
from anisoscope.studies.atlas.reruns import read_reruns
from anisoscope.studies.claims.claim_tables import (
    duration,
    losses_table,
    overview_table,
    power_table,
    rules_table,
    sizes_table,
    verdicts_table,
)
from anisoscope.studies.claims.committed_evidence import committed, judged
from anisoscope.studies.claims.disputes import disputes_text
from anisoscope.studies.claims.first_edition import changes_table
from anisoscope.studies.claims.runner import CLAIMS

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
README = HERE.parent / "README.md"
REAL = "stories15M"  # the model of the README, which must be downloaded
HEADER = "<!-- written by docs/build.py from the code: do not edit -->\n\n"


def pages() -> dict[Path, str]:
    """Return every generated page and its text."""
    return {
        HERE / "metrics.md": HEADER + metrics_page(),
        HERE / "cli.md": HEADER + cli_page(),
        HERE / "api.md": HEADER + api_page(),
        HERE / "claims.md": claims_page(),
        HERE / "comparison.md": comparison_page(),
        HERE / "glossary.md": HEADER + glossary_page(),
        **atlas_pages(),
    }


def claims_page() -> str:
    """Return the page of claims with new tables: the rules from the code, the verdicts from the committed evidence."""
    packed, medium = committed(), committed("medium")
    pairs, larger = judged(packed), judged(medium)
    tables = {
        "overview": overview_table(CLAIMS, pairs),
        "disputes": disputes_text(pairs),
        "verdicts": f"{verdicts_table(CLAIMS, pairs)}\n\n{duration(packed)}",
        "losses": losses_table(packed["losses"]),
        "power": power_table(pairs),
        "rules": rules_table(CLAIMS),
        "models": models_part(),
        "changes": changes_table(pairs),
        "medium": sizes_table(pairs, larger),
        "medium losses": losses_table(medium["losses"]),
    }
    return with_tables(HERE / "claims.md", tables)


def glossary_page() -> str:
    """Return the words of tables, reports and messages."""
    intro = (
        "# Words\n\nThe words in tables, reports and messages; `anisoscope words` prints them.\n"
        "[Pitfalls](pitfalls.md) shows with numbers why most of them matter.\n\n"
    )
    return intro + _table(["word", "means"], [[word, meaning] for word, meaning in WORDS.items()]) + "\n"


def with_tables(path: Path, tables: Mapping[str, str]) -> str:
    """Return a page with new tables between their marks."""
    page = path.read_text()
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by docs/build.py -->", f"<!-- end of {name} -->"
        if (page.count(begin), page.count(end)) != (1, 1):
            raise SystemExit(f"{path.name} needs one {begin} and one {end} after it, for the table of {name}.")
        page = f"{page.partition(begin)[0]}{begin}\n\n{table}\n\n{end}{page.partition(end)[2]}"
    return page


def models_part() -> str:
    """Return the matrix of claims and models of the atlas, and the claims about many models, judged on all of them."""
    models = atlas_evidence(committed_evidence())
    rows = [f"- **{row.id}**: {row.statement}" for row, _ in matrix([])]
    all_together = [
        f"- {verdict.claim}, {verdict.line}, on {verdict.reasons.ran}: **{verdict.outcome}**; {verdict.quantity}: "
        f"{verdict.effect or 'not measured'}"
        for verdict in verdicts_on_all(models)
    ]
    return "\n".join([*rows, "", matrix_table(models), "", "On all models together:", "", *all_together])


def comparison_page() -> str:
    """Return the comparison with other tools, with the tables of the last benchmarks."""
    peers, tracker = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("peers", "tracker"))
    tools = list(dict.fromkeys(tool for answers in peers["answers"].values() for tool in answers))
    answers = [[data, *(_answer(values.get(tool, "")) for tool in tools)] for data, values in peers["answers"].items()]
    times = [_figure(figure) for figure in peers["figures"] if figure["unit"].startswith("×")]
    training = [_figure(figure) for figure in tracker["figures"] if figure["unit"] == "×"]
    tables = {
        "answers": _table(["data", *tools], answers),
        "times": _table(["what", "time in ours"], times),
        "training": _table(["what", "time in plain steps"], training),
    }
    return with_tables(HERE / "comparison.md", tables)


def _answer(text: str) -> str:
    return "no answer" if text.startswith("none") else text


def _figure(figure: Mapping[str, Any]) -> list[str]:
    value = figure["value"]
    return [
        figure["name"].removesuffix(", in steps").removesuffix(", in ours"),
        "no answer" if value is None else f"{value:.3g} ×",
    ]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def atlas_pages() -> dict[Path, str]:
    """Return the atlas in Markdown and HTML, from the evidence that comes with the library."""
    folder = committed_evidence()
    models, rounded = atlas_evidence(folder), shifts(read_study(study_path(folder)))
    reruns = read_reruns(reruns_path(folder))
    return {
        HERE / "atlas.md": HEADER + atlas_markdown(models, rounded, reruns),
        HERE / "atlas.html": atlas_html(models, rounded, reruns),
    }


def metrics_page() -> str:
    """Return the reference of all metrics."""
    known = catalogue()
    families: dict[str, list[Metric]] = {}
    for metric in known.values():
        families.setdefault(metric.family, []).append(metric)
    lines = [
        "# Metrics",
        "",
        f"There are {len(known)} metrics in {len(families)} families. *Ignores* lists the changes of the rows that",
        "leave a metric unchanged. Tests check that it ignores these changes and no others:",
        "",
        *(f"- **{law}**: {text}" for law, text in INVARIANCES.items()),
        "",
    ]
    for family, members in families.items():
        lines += [f"## {family}", "", "| metric | meaning | range | ignores | paper |", "|---|---|---|---|---|"]
        lines += [_row(metric) for metric in members]
        lines += [""]
        for metric in members:
            lines += [f"### {metric.name}", "", metric.text, ""]
            if metric.requires:
                lines += [f"Needs {' and '.join(sorted(metric.requires))}.", ""]
    return "\n".join(lines)


def _row(metric: Metric) -> str:
    implied = {"permutation"} if "rotation" in metric.keeps else set()
    ignores = [law for law in INVARIANCES if law in metric.keeps - implied]
    low, high = (f"{edge:g}".replace("inf", "∞").replace("-", "−") for edge in (metric.low, metric.high))
    cells = (f"[`{metric.name}`](#{metric.name})", metric.meaning, f"{low} … {high}", ", ".join(ignores), metric.paper)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def walked() -> list[Path]:
    """List the pages whose blocks run, in order, in one folder per page."""
    names = ("tour.md", "pitfalls.md", "for-agents.md")
    return [README, *(HERE / name for name in names), *sorted((HERE / "howto").glob("*.md"))]


def walk(page: Path) -> str:
    """Return a page with the current output of its blocks."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        if page.parent.name == "howto" or page.name == "for-agents.md":
            prepare(Path(folder))
        return refreshed(text, list(run_blocks(blocks_of(text), Path(folder), page.name)))


def walk_real(model: Path) -> str:
    """Return the README with the current output of its block that needs a real model, in this folder."""
    text = README.read_text()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / REAL).symlink_to(model.resolve())
        wanted = [block for block in blocks_of(text.replace(f"sh needs {REAL}", "sh")) if REAL in block.code]
        return refreshed(text, list(run_blocks(wanted, Path(folder), README.name)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", type=Path, help="the folder of stories15M, for the README")
    arguments = parser.parse_args()
    for path, text in pages().items():
        path.write_text(text)
    for path in walked():
        path.write_text(walk(path))
    if arguments.real is not None:
        README.write_text(walk_real(arguments.real))
