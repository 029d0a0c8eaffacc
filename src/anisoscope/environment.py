"""What is installed here and what works: the first thing to look at when something does not.

What may take the process down with it (a broken package, a product that the processor does not know, a driver) is tried
in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from anisoscope import __version__

_SECONDS = 120  # for one trial; a slow disk may need long to read torch for the first time
_LITTLE = 5e9  # bytes of a disk on which a sweep's downloads may not fit
_MODULES = {"pillow": "PIL", "vl-convert-python": "vl_convert"}  # where a package's module has another name
_OPTIONAL = {
    "ray": "sweeps on a cluster",
    "lightning": "the Lightning callback",
    "datasets": "text by datasets id",
    "wandb": "logging to Weights & Biases",
    "tensorboard": "logging to TensorBoard",
    "mlflow": "logging to MLflow",
    "trackio": "logging to trackio",
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

_IMPORTS = """
import importlib, json, sys
def why(name):
    try: importlib.import_module(name)
    except BaseException as error: return (type(error).__name__ + ": " + str(error)).splitlines()[0][:200]
print(json.dumps({name: why(name) for name in sys.argv[1:]}))
"""
_PRODUCT = """
import sys, torch
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
a = torch.ones(64, 64, dtype=dtype, device=device)
assert float((a @ a)[0, 0]) == 64, "64 ones add up to " + str(float((a @ a)[0, 0]))
"""
_RAY = """
import os
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
assert ray.get(ray.remote(lambda: 1 + 1).remote()) == 2
"""


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    `state` is "ok", "missing" (optional, not there), "limited" (works, with something to know) or "broken" (the core
    needs it and it does not work).
    """

    what: str
    state: str
    detail: str


def checks(thorough: bool = False) -> Iterator[Check]:
    """Everything that is looked at, the needed things first; `thorough` also starts a browser and Ray."""
    yield Check("anisoscope", "ok", f"{__version__}, in {Path(__file__).parent}")
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("Python", "ok" if sys.version_info >= (3, 11) else "broken", python)
    yield from _packages(thorough)
    yield from _products()
    yield _folder(Path(tempfile.gettempdir()), "scratch folder", "broken", "set TMPDIR to a folder that can be")
    yield _folder(Path.cwd(), "this folder", "limited", "runs are written here by default: give --out elsewhere")
    yield _hub()
    yield _browser(thorough)
    if thorough and _version("ray") is not None:
        why = _trial(_RAY)
        yield Check("ray, started", "limited" if why else "ok", why or "a task ran on a cluster of one processor")


# --- packages -----------------------------------------------------------------------------------------------------


def _packages(thorough: bool) -> Iterator[Check]:
    """Every package that is needed, then the optional ones: its version, and whether it can be imported.

    Optional ones are imported only by a thorough look: some take longer than all the others together.
    """
    needed = _needed()
    versions = {name: _version(name) for name in (*needed, *_OPTIONAL)}
    tried = [name for name, found in versions.items() if found and (thorough or name in needed)]
    modules = {name: _MODULES.get(name, name.replace("-", "_")) for name in tried}
    answer, failed = _answer(_IMPORTS, *modules.values())
    reasons: dict[str, str | None] = json.loads(answer.splitlines()[-1]) if not failed else {}
    if failed:
        yield Check("packages", "broken", f"importing them ended the process ({failed}); install anisoscope again")
    for name, found in versions.items():
        optional = name not in needed
        why = reasons.get(modules.get(name, ""))
        if found is None and optional:
            yield Check(name, "missing", f"only needed for {_OPTIONAL[name]}: pip install {name}")
        elif found is None:
            yield Check(name, "broken", f"not installed; pip install '{name}{needed[name]}'")
        elif why is not None:
            remedy = f"only needed for {_OPTIONAL[name]}" if optional else f"pip install '{name}{needed[name]}'"
            yield Check(name, "limited" if optional else "broken", f"{found} cannot be imported ({why}); {remedy}")
        elif not optional and not _allowed(found, needed[name]):
            yield Check(name, "broken", f"{found} is not {needed[name]}; pip install '{name}{needed[name]}'")
        else:
            yield Check(name, "ok", found)


def _needed() -> dict[str, str]:
    """The packages that this one was installed with and the versions it allows, by name.

    Not installed as a package (a tree on the path), it says only that torch is needed.
    """
    try:
        lines = [line for line in requires("anisoscope") or () if "extra" not in line]
    except PackageNotFoundError:
        lines = ["torch"]
    return {found[1]: found[2] for line in lines if (found := re.match(r"([\w.-]+)\s*([^;]*)", line.strip()))}


def _allowed(found: str, wanted: str) -> bool:
    """Whether a version is among those allowed.

    >>> _allowed("2.13.0+cpu", ">=2.9"), _allowed("4.50.1", "<6,>=5.0")
    (True, False)
    """
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # comes with what we need; where it does not there is nothing to compare with
        return True
    return SpecifierSet(wanted).contains(found, prereleases=True)


def _version(name: str) -> str | None:
    for package in (name, f"{name}-skinny"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


# --- devices ------------------------------------------------------------------------------------------------------


def _products() -> Iterator[Check]:
    """Matrix products on the processor and on each accelerator, tried."""
    plain = _trial(_PRODUCT, "cpu", "float32")
    yield Check("float32 on the CPU", "broken" if plain else "ok", plain or f"{os.cpu_count()} cores")
    if plain:
        return
    half = _trial(_PRODUCT, "cpu", "bfloat16")
    detail = (
        f"{half}; half precision is loaded as float32 here" if half else "works; weights are still loaded as float32"
    )
    yield Check("bfloat16 on the CPU", "limited" if half else "ok", detail)
    import torch

    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    if not names:
        yield Check("GPU", "missing", "none is seen; everything works on the CPU, large models slowly")
    for name in names:
        why = _trial(_PRODUCT, name, "float32")
        yield Check(name, "limited" if why else "ok", why or _about(name))


def _about(device: str) -> str:
    import torch

    if device == "mps":
        return "Apple GPU; sums in float64 are kept on the CPU"
    memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    return f"{torch.cuda.get_device_name(device)}, {memory:.0f} GB"


# --- places and programs ------------------------------------------------------------------------------------------


def _folder(path: Path, what: str, state: str, remedy: str) -> Check:
    """Whether a folder can be written, and how much room there is."""
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            free = shutil.disk_usage(path).free
    except OSError as why:
        return Check(what, state, f"{path} cannot be written ({why.strerror or why}); {remedy}")
    room = f"{path} can be written, {free / 1e9:.0f} GB free"
    return Check(what, "limited" if free < _LITTLE else "ok", room)


def _hub() -> Check:
    """Whether models may be downloaded, and where they are kept; nothing is sent."""
    what = "Hugging Face hub"
    try:
        from huggingface_hub import constants
    except ImportError:
        return Check(what, "limited", "huggingface_hub cannot be imported: models from folders only")
    cache = Path(constants.HF_HUB_CACHE)
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    kept = f"{models} models in {cache}"
    if constants.HF_HUB_OFFLINE:
        return Check(what, "limited", f"offline mode is on (HF_HUB_OFFLINE): only what is kept, {kept}")
    return Check(what, "ok", f"downloads are allowed; {kept}")


def _browser(thorough: bool) -> Check:
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        return Check("chromium", "missing", "only needed for tests of the pages; reports open in any browser")
    if not thorough:
        return Check("chromium", "ok", f"{found}; --thorough opens a page in it")
    with tempfile.TemporaryDirectory() as profile:
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom")
        shown, why = _run([found, *options, "data:text/html,<p>it works</p>"])
    works = not why and "it works" in shown
    return Check(
        "chromium", "ok" if works else "limited", f"{found} {'opened a page' if works else why or 'is silent'}"
    )


# --- trials -------------------------------------------------------------------------------------------------------


def _trial(program: str, *arguments: str) -> str | None:
    """Why a small program does not end well in a process of its own, or None."""
    return _answer(program, *arguments)[1]


def _answer(program: str, *arguments: str) -> tuple[str, str | None]:
    return _run([sys.executable, "-c", program, *arguments])


def _run(command: Sequence[str]) -> tuple[str, str | None]:
    """What a command printed, and how it failed: killed by a signal, with which last line, or not at all."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_SECONDS} seconds"
    except OSError as why:
        return "", f"cannot be started: {why.strerror or why}"
    if done.returncode < 0:
        return done.stdout, f"killed by signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200]
    return done.stdout, last if done.returncode else None
