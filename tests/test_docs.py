"""Documentation cannot rot: generated pages are current, examples in docstrings and README run."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    "records",
    "synthetic",
    "offline.vectors",
    "stats.norms",
    "stats.attention",
    "metrics.evaluate",
    "models.tables",
    "lab.corpora",
    "report.compare",
    "report.interval",
    "report.live",
    "report.pack",
    "report.parts",
    "report.sentences",
    "report.shapes",
    "report.terminal",
    "report.tables",
    "disk",
    "doctor",
    "schedule",
    "stats.threads",
]
EXAMPLES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.real] if path.name == "decoder_and_encoder.py" else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    for path, text in load(ROOT / "docs" / "build.py").pages().items():
        assert path.read_text() == text, f"{path.name} is older than the code; run `make docs`"


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [path.name])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.filterwarnings("default")  # the kernel's libraries warn of their own
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without what it prints: it cannot be stale
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    charts = [each for each in outputs if "vega" in str(each.get("data", {}).get("text/html", ""))]
    assert len(charts) == 2
    told = "".join(each.get("text", "") for each in outputs)
    assert re.search(r"mean_cosine +\+0\.\d+ ± 0\.\d+ +clear", told)


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    for folder in ("src", "docs", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".md", ".json", ".toml", ".ipynb") and path != Path(__file__):
                assert not re.search(r"(^|[^\w.])/(work|root|home)/", path.read_text()), path
