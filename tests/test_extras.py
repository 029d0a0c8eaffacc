"""The base installation is enough for vectors, torch modules and reports; everything else names the command to run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from anisoscope.errors import InputError
from anisoscope.extras import EXTRAS, install_command, needs

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Hides modules from the import system, also from `find_spec`, as if they were not installed.
HIDE = """
import json, sys
from importlib.machinery import PathFinder
hidden = set(json.loads(sys.argv[1]))
class Visible(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path = [Visible if finder is PathFinder else finder for finder in sys.meta_path]
"""
WORK = """
import numpy as np, torch, anisoscope
from torch import nn
from anisoscope.cli.app import app
def command(*words):
    app(list(words), standalone_mode=False)

command("measure", "v.npy", "--metrics", "isoscore,two_nn", "--out", "runs/v")
command("report", "runs/v")
command("figure", "runs/v", "--metric", "isoscore", "--save", "v.json")
command("show", "runs/v")
geometry = anisoscope.Geometry(["mean_cosine", "isoscore"])
geometry.update(torch.randn(50, 8))
geometry.compute()
layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
model = nn.TransformerEncoder(layer, 2).eval()
run = anisoscope.measure(model, [torch.randn(4, 6, 8) for _ in range(4)], metrics=["isoscore"])
assert {record.site for record in run.records()} >= {"resid.0", "resid.1"}
"""
# What needs an extra, and the extra that the message names.
REFUSED = {
    "hub": ("hf", 'import anisoscope; anisoscope.open_model("gpt2")'),
    "folder": ("hf", 'import anisoscope; anisoscope.open_model("model")'),
    "gguf": ("hf", 'import anisoscope; anisoscope.open_model("m.gguf")'),
    "lab": ("hf", 'import anisoscope.cli; anisoscope.cli.app(["demo"], standalone_mode=False)'),
    "trainer": ("hf", "import anisoscope.integrations.transformers"),
    "audio": ("audio", 'from anisoscope.data.audio import audio_batches; next(iter(audio_batches(None, "a.wav")))'),
    "images": ("vision", 'from anisoscope.data.images import image_batches; next(iter(image_batches(None, "a.png")))'),
    "serve": ("serve", "import anisoscope.report.live"),
    "ray": ("ray", "from anisoscope.sweep.engines import _ray; _ray()"),
    "sklearn": ("scikit-learn", "import anisoscope.integrations.sklearn"),
}  # fmt: skip
REFUSE = """
from anisoscope.errors import InputError
messages = {}
for name, code in json.loads(sys.argv[2]).items():
    try:
        exec(code)
    except InputError as error:
        messages[name] = str(error)
    except BaseException as error:
        messages[name] = "not an InputError: " + repr(error)
    else:
        messages[name] = "no error"
print(json.dumps(messages))
"""


def base_packages() -> set[str]:
    """The packages that come with `pip install anisoscope`: its dependencies and theirs."""
    packages, new = set(), {"anisoscope"}
    while new:
        name = new.pop()
        packages.add(name)
        try:
            lines = requires(name) or []
        except ImportError:  # of another platform
            continue
        needed = [Requirement(line) for line in lines]
        names = {_plain(each.name) for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}
        new |= names - packages
    return packages


def hidden_modules() -> list[str]:
    """The modules of all installed packages that are not part of the base installation."""
    base = base_packages()
    tops = packages_distributions().items()
    return sorted(top for top, packages in tops if not {_plain(package) for package in packages} & base)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE + program, json.dumps(hidden_modules()), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)


def test_the_base_installation_measures_vectors_and_modules_and_writes_reports(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 8)))
    hidden = hidden_modules()
    assert {"transformers", "tokenizers", "huggingface_hub", "PIL", "starlette", "sklearn"} <= set(hidden)
    assert not {"torch", "numpy", "altair", "jinja2", "rich"} & set(hidden)
    done = run(WORK, tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs" / "v" / "report.html").read_text()
    assert "vegaEmbed" in page
    assert "<script src" not in page  # a report fetches nothing


def test_a_missing_extra_is_one_line_that_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    for name in ("m.gguf", "a.wav", "a.png"):
        (tmp_path / name).write_bytes(b"GGUF")
    done = run(REFUSE, tmp_path, json.dumps({name: code for name, (_, code) in REFUSED.items()}))
    assert done.returncode == 0, done.stderr
    messages: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name, (extra, _) in REFUSED.items():
        assert messages[name].endswith(f"Run: {install_command(extra)}"), f"{name}: {messages[name]}"
        assert "\n" not in messages[name]


def test_importing_the_package_loads_no_heavy_library() -> None:
    program = (
        "import sys, anisoscope; light = set(sys.modules); anisoscope.Geometry; "
        "print(sorted({name.split('.')[0] for name in light}), sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    light, after = done.stdout.split("] [")
    for name in ("torch", "numpy", "scipy", "pandas", "altair", "transformers", "rich", "typer"):
        assert f"'{name}'" not in light, f"import anisoscope loads {name}"
    for name in ("transformers", "sklearn", "altair", "pandas", "pyarrow", "torch._dynamo", "scipy.stats", "jinja2"):
        assert f"'{name}'" not in after, f"anisoscope.Geometry loads {name}"


def test_the_extras_are_those_of_the_project_file() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {*EXTRAS, "all", "docs", "dev"}
    assert extras["all"] == [f"anisoscope[{','.join(EXTRAS)}]"]
    assert "anisoscope[all]" in extras["dev"]


def test_a_package_that_is_installed_and_damaged_is_reported_as_such() -> None:
    with pytest.raises(InputError, match=r"cannot be imported \(libfoo.so\)"), needs("hf", "opening a model"):
        raise ImportError("libfoo.so", name="transformers")
