"""Make the sample pages of the site: the commands of gallery.md, real models from the atlas, and the notebook."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from blocks import blocks_of, run_blocks

from anisoscope.metrics import catalogue
from anisoscope.records import Record
from anisoscope.report.page import write_report
from anisoscope.store.run import Run
from anisoscope.studies.atlas.evidence import ModelEvidence, committed_evidence, read_evidence

HERE = Path(__file__).parent
# heading in gallery.md -> file name of its page
SAMPLES = {
    "Vectors": "vectors",
    "A real model": "model",
    "Two models": "two-models",
    "A training run": "training",
    "A tangent test": "tangent",
    "Claims": "claims",
    "Atlas": "atlas",
}
DECODER, ENCODER = "stories15M", "MiniLM-L6"
_CELL = "import altair\n\naltair.renderers.enable('svg')"  # charts as pictures: the default loads a script from a host


def write_samples(folder: Path) -> None:
    """Write one HTML page per sample into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for _ in run_blocks(blocks_of((HERE / "gallery.md").read_text()), work, "gallery.md"):
            pass
        measured = {model.name: model for model in read_evidence(committed_evidence())}
        decoder, encoder = (run_of(measured[name], work) for name in (DECODER, ENCODER))
        write_report([decoder], work / "model.html")
        write_report([decoder, encoder], work / "two-models.html")
        for name in SAMPLES.values():
            shutil.copy(work / f"{name}.html", folder / f"{name}.html")


def run_of(model: ModelEvidence, folder: Path) -> Run:
    """Write the profiles of a trained model of the atlas as a run into a folder."""
    known = catalogue()
    about = model.inputs[model.domain]
    profiles = about["trained"]
    records = [
        Record(site, metric, value, error=error, error_kind="jackknife", null=null, tokens=tokens)
        for metric, policies in profiles.items()
        for tokens, points in policies.items()
        for site, value, error, null in points
    ]
    info: dict[str, Any] = {
        "kind": "model",
        "model": {"source": model.name, "dtype": model.precision},
        "data": {"source": about["describes"], "tokens": about["tokens"]},
        "unit": "documents",
        "metrics": {metric: known[metric].card() for metric in profiles},
    }
    with Run.create(folder / model.name, info, command=f"anisoscope atlas run {model.name}") as run:
        run.append(records)
    return Run.open(folder / model.name)


def notebook_page(path: Path) -> str:
    """Run a notebook and return it with its output as Markdown.

    Charts become pictures, tables stay tables.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_CELL))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    parts = [part for cell in notebook.cells[1:] for part in _cell(cell)]
    return "\n\n".join(parts) + "\n"


def _cell(cell: Any) -> list[str]:
    """Return the parts of a cell of a notebook: its text or code, and what it printed."""
    if cell.cell_type == "markdown":
        return [cell.source]
    parts = [f"```python\n{cell.source}\n```"]
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            parts.append(f'<div class="chart">{_one_line(data["image/svg+xml"])}</div>')
        elif "text/html" in data:
            parts.append(_one_line(data["text/html"]))
        else:
            parts.append(f"```text\n{(output.get('text') or data.get('text/plain', '')).rstrip()}\n```")
    return parts


def _one_line(html: str) -> str:
    return " ".join(line.strip() for line in html.splitlines())  # Markdown would end the HTML at an empty line
