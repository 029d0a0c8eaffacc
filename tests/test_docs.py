"""Generated pages are up to date, and the examples and the notebook run."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
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


def test_generated_pages_are_up_to_date() -> None:
    for path, text in load(ROOT / "docs" / "build.py").pages().items():
        assert path.read_text() == text, f"{path.name} is older than the code. Run `make docs`."


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [path.name])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.filterwarnings("default")  # libraries of the kernel emit warnings
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # stored without output, which could be stale
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    charts = [each for each in outputs if "vega" in str(each.get("data", {}).get("text/html", ""))]
    assert len(charts) == 2
    printed = "".join(each.get("text", "") for each in outputs)
    assert re.search(r"mean_cosine +\+0\.\d+ ± 0\.\d+ +clear", printed)


def test_no_file_contains_a_path_of_one_machine() -> None:
    for folder in ("src", "docs", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".md", ".json", ".toml", ".ipynb") and path != Path(__file__):
                assert not re.search(r"(^|[^\w.])/(work|root|home)/", path.read_text()), path
