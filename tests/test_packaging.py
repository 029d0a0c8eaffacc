"""The wheel and the sdist contain what they need and nothing else, and agree on one version."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

import anisoscope
from anisoscope.errors import InputError
from anisoscope.extras import EXTRAS
from tools import hashes, licences, pack_claims

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist in the development environment, as `make dist` does."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def wheel_of(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_every_module_and_asset_and_no_tests(dist: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        names = set(wheel.namelist())
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "anisoscope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "anisoscope/py.typed" in wanted
    assert any(name.endswith("assets/page.js") for name in wanted)
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {name.split("/", 1)[1] for name in names if ".dist-info/" in name} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_metadata_and_the_entry_points_are_complete(dist: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        info = f"anisoscope-{anisoscope.__version__}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert metadata["Version"] == anisoscope.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert metadata["Author"]
    assert "# anisoscope" in metadata.get_payload()
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert set(metadata.get_all("Provides-Extra", [])) == {*EXTRAS, "all", "docs", "dev"}
    assert "anisoscope = anisoscope.cli:main" in entries
    assert "anisoscope-lab = anisoscope.studies.lab." in entries


def test_the_sdist_can_be_built_and_tested(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "requirements-hashed.txt",
    ):
        assert name in names
    for name in (
        "src/anisoscope/report/assets/page.css",
        "tests/test_packaging.py",
        "docs/tour.md",
        "examples/notebook.ipynb",
    ):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "runs", ".git/"))]


def test_the_version_is_defined_in_one_file() -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert cited is not None
    assert cited[1] == anisoscope.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert newest is not None
    assert newest[1] == anisoscope.__version__


def test_every_dependency_of_the_project_is_pinned_for_developers() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    wanted = [
        *PROJECT["dependencies"],
        *(name for extra in PROJECT["optional-dependencies"].values() for name in extra),
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=;\s\[]", each)[0]).lower() for each in wanted}
    names -= {"anisoscope"}  # an extra may consist of others
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}; run `make constraints`"


def test_every_import_of_the_package_is_declared() -> None:
    """Modules imported at the top of a file must be dependencies; others are imported inside `with needs(...)`."""
    known = {re.split(r"[<>=;]", each)[0].replace("-", "_") for each in PROJECT["dependencies"]}
    known |= {"anisoscope", *sys.stdlib_module_names}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in known, f"{path.name} imports {name}, which no dependency provides"


def test_a_metric_of_another_package_is_loaded_through_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(
        "from anisoscope import metric\n"
        "from anisoscope.stats.moments import Moments\n"
        "@metric(Moments, low=0, high=float('inf'), keeps=set(), paper='theirs2027')\n"
        "def rows_seen(moments: Moments) -> float:\n"
        "    '''Number of rows.'''\n"
        "    return float(moments.n)\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[anisoscope.metrics]\nmine = theirs\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import anisoscope\n"
        "print(anisoscope.measure_rows([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]], ['rows_seen']).records()[0].value)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3.0", done.stderr


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    """The wheel is installed without development tools and started from another folder."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    version = next(line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
    subprocess.run([*install, version], check=True, timeout=1200)
    subprocess.run([*install, str(wheel_of(dist))], check=True, timeout=1200)

    def run(*words: str) -> str:
        command = [str(tmp_path / "venv" / "bin" / "anisoscope"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    import numpy as np

    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 8)))
    assert "anisoscope demo" in run("demo", "--help").replace("\n", " ")
    assert json.loads(run("doctor", "--json"))[0]["what"] == "anisoscope"
    run("measure", "v.npy", "--metrics", "isoscore,two_nn", "--out", "runs/v")
    run("report", "runs/v")
    assert (tmp_path / "runs" / "v" / "report.html").stat().st_size > 10_000
    run("figure", "runs/v", "--metric", "isoscore", "--save", "v.json")
    program = (
        "import torch, anisoscope; g = anisoscope.Geometry(['isoscore']); g.update(torch.randn(50, 8)); g.compute()"
    )
    subprocess.run([python, "-c", program], check=True, cwd=tmp_path, timeout=600)
    run("figure", "runs/v", "--metric", "isoscore", "--save", "v.png")
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    frozen = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    assert not re.search(
        r"^(pytest|mypy|ruff|hypothesis|ray|transformers|pillow|starlette|soundfile)==", frozen, flags=re.M
    )


def test_every_pinned_version_that_is_needed_has_checksums_except_torch() -> None:
    text = hashes.HASHED.read_text()
    entries = {entry.split(" ")[0]: entry for entry in re.split(r"\n(?=\S)", text) if "==" in entry.split(" ")[0]}
    names = hashes.needed("anisoscope", "dev") - {"torch"}
    pins = [(line, canonicalize_name(line.partition("==")[0])) for line in hashes.CONSTRAINTS.read_text().split()]
    lines = [line for line, name in pins if name in names]
    assert names - {name for _, name in pins} <= {"anisoscope", "setuptools"}  # torch brings setuptools
    assert list(entries) == lines, "run `make hashes`"
    for entry in entries.values():
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", entry)


LINKS = """<a href="https://x/a_b-1.0-py3-none-any.whl#sha256=11">a_b-1.0-py3-none-any.whl</a>
<a href="https://x/a_b-1.0-cp310-cp310-win32.whl#sha256=22">old</a>
<a href="https://x/a_b-1.0-cp37-abi3-manylinux_2_17_x86_64.whl#sha256=33">stable</a>
<a href="https://x/a-b-1.0.tar.gz#sha256=44">source</a>
<a href="https://x/a_b-1.1-py3-none-any.whl#sha256=55" data-yanked="broken">1.1</a>
<a href="https://x/not-a-version.whl#sha256=66">odd</a> <a href="https://x/a_b-1.0.zip">no checksum</a>
"""


def test_checksums_come_from_the_files_of_one_version() -> None:
    files = hashes.files_on(LINKS)
    entry = hashes.entry("A.b", Version("1.0"), files)
    assert re.findall(r"sha256:(\d+)", entry) == ["11", "33", "44"]
    with pytest.raises(ValueError, match="withdrawn"):
        hashes.entry("a-b", Version("1.1"), files)
    with pytest.raises(ValueError, match="not on the index"):
        hashes.entry("a-b", Version("2.0"), files)


def test_the_page_of_licences_agrees_with_the_installed_packages() -> None:
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in licences.PAGE.read_text().splitlines()]
    listed = {row[0]: (row[1], row[2]) for row in table if len(row) == 4}
    for name, (version, licence) in licences.rows().items():
        assert name in listed, "run `make licences`"
        assert listed[name] == (version, licence.replace("|", "/")) or listed[name][0] != version, name
    pins = dict(line.split("==") for line in hashes.CONSTRAINTS.read_text().split())
    stale = [name for name, (version, _) in listed.items() if name in pins and pins[name] != version]
    assert not stale, "run `make licences`"
    assert not [name for name, (_, licence) in listed.items() if name in pins and not licence]


def test_a_run_of_claims_adds_to_the_evidence_of_the_package() -> None:
    def packed(size: str, losses: dict[str, list[float]], **claims: int) -> dict[str, Any]:
        rows = [{"cell": cell, "losses": values} for cell, values in losses.items()]
        return {"settings": {"size": size}, "losses": rows, "claims": claims}

    old = packed("small", {"decoder": [1.3, 1.4], "narrow": [1.9]}, T1=1, T7=1)
    run = {"decoder": [1.2], "narrow": [1.8], "wide": [1.7]}
    both = pack_claims.added(old, packed("small", run, T7=2))
    assert both["claims"] == {"T1": 1, "T7": 2}
    assert {row["cell"]: row["losses"] for row in both["losses"]} == {
        "decoder": [1.3, 1.4],  # more seeds
        "narrow": [1.8],
        "wide": [1.7],
    }
    whole = packed("small", run, T1=3, T7=3)
    assert pack_claims.added(old, whole) == whole  # nothing of the older runs is left


def test_the_evidence_of_a_run_goes_to_the_file_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_claims, "HERE", tmp_path)
    run: dict[str, Any] = {"settings": {"size": "medium"}, "losses": [], "claims": {"S2": 1}}
    monkeypatch.setattr("tools.pack_claims.committed.pack_evidence", lambda _: run)
    pack_claims.main("run")
    run["claims"] = {"S3": 2}
    pack_claims.main("run")
    (written,) = tmp_path.iterdir()
    assert written.name == "medium_evidence.json"
    assert json.loads(written.read_text())["claims"] == {"S2": 1, "S3": 2}
    run["settings"] = {"size": "tiny"}
    with pytest.raises(InputError, match="No evidence of size named 'tiny'"):
        pack_claims.main("run")
