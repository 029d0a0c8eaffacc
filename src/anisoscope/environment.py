"""Checks of the installation: what is installed and what works.

Whatever may crash the process (a damaged package, an instruction that the processor lacks, a driver) is tried in a
subprocess.
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
from anisoscope.extras import EXTRAS, install_command

_SECONDS = 120  # limit for one trial; importing torch from a slow disk takes long
_LITTLE = 5e9  # bytes; the downloads of a sweep may need more
_MODULES = {"pillow": "PIL", "vl-convert-python": "vl_convert"}  # packages whose module has another name
_OPTIONAL = {
    "lightning": "the Lightning callback",
    "datasets": "text by datasets id",
    "wandb": "logging to Weights & Biases",
    "tensorboard": "logging to TensorBoard",
    "mlflow": "logging to MLflow",
    "trackio": "logging to trackio",
}
_SLOW = ("peft",)  # takes longer to import than all others together, and only adapters need it
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

_IMPORTS = """
import importlib, json, sys
def why(name):
    try: importlib.import_module(name)
    except BaseException as error: return (type(error).__name__ + ": " + str(error)).splitlines()[0][:200]
print(json.dumps({name: why(name) for name in sys.argv[1:]}))
"""
_PRODUCT = """
import json, sys, torch
for name in sys.argv[2:]:
    a = torch.ones(64, 64, dtype=getattr(torch, name), device=sys.argv[1])
    assert float((a @ a)[0, 0]) == 64, "64 ones add up to " + str(float((a @ a)[0, 0]))
def about(number):
    memory = torch.cuda.get_device_properties(number).total_memory / 1e9
    return f"{torch.cuda.get_device_name(number)}, {memory:.0f} GB"
devices = {f"cuda:{number}": about(number) for number in range(torch.cuda.device_count())}
if torch.backends.mps.is_available():
    devices["mps"] = "Apple GPU; sums in float64 are kept on the CPU"
print(json.dumps(devices))
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
    """The result of one check.

    `state` is "ok", "missing" (optional and not installed), "limited" (works, with a caveat) or "broken" (needed by
    every measurement and does not work). `library` is whether it is about an installed package.
    """

    what: str
    state: str
    detail: str
    library: bool = False


def checks(thorough: bool = False) -> Iterator[Check]:
    """Run all checks, those of packages last.

    Args:
        thorough: Also import packages that are optional or slow, and start a browser and Ray.
    """
    yield Check("anisoscope", "ok", f"{__version__}, in {Path(__file__).parent}")
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("Python", "ok" if sys.version_info >= (3, 11) else "broken", python)
    yield from _products()
    yield _folder(Path(tempfile.gettempdir()), "scratch folder", "broken", "set TMPDIR to a folder that can be written")
    yield _folder(Path.cwd(), "this folder", "limited", "runs are written here by default; use --out")
    yield _hub()
    yield _browser(thorough)
    if thorough and _version("ray") is not None:
        problem = _trial(_RAY)
        yield Check(
            "ray, started", "limited" if problem else "ok", problem or "a task ran on a cluster of one processor"
        )
    yield from _packages(thorough)


# --- packages -----------------------------------------------------------------------------------------------------


def _packages(thorough: bool) -> Iterator[Check]:
    """Every extra, every package of the base installation, then those of the extras and other optional ones.

    Optional packages that no extra names, and those that take long to import, are imported only by a thorough check.
    """
    needed, extras = _requirements()
    wanted = needed | {name: allowed for packages in extras.values() for name, allowed in packages.items()}
    versions = {name: _version(name) for name in (*wanted, *_OPTIONAL)}
    for extra, packages in extras.items():
        yield _extra(extra, {name: versions[name] for name in packages})
    tried = [
        name
        for name, installed in versions.items()
        if installed and (thorough or (name in wanted and name not in _SLOW and name != "ray"))
    ]
    modules = {name: _MODULES.get(name, name.replace("-", "_")) for name in tried}
    output, failed = _output(_IMPORTS, *modules.values())
    reasons: dict[str, str | None] = json.loads(output.splitlines()[-1]) if not failed else {}
    if failed:
        yield Check(
            "packages", "broken", f"importing them ended the process ({failed}); install anisoscope again", True
        )
    for name, installed in versions.items():
        allowed = wanted.get(name, "")
        wrong = "broken" if name in needed else "limited"
        problem = reasons.get(modules.get(name, ""))
        if installed is None:
            if name in needed:
                yield Check(name, "broken", f"not installed; pip install '{name}{allowed}'", True)
            elif name in _OPTIONAL:
                yield Check(name, "missing", f"only needed for {_OPTIONAL[name]}: {install_command(name)}", True)
        elif problem is not None:
            remedy = f"only needed for {_OPTIONAL[name]}" if name in _OPTIONAL else f"pip install '{name}{allowed}'"
            yield Check(name, wrong, f"{installed} cannot be imported ({problem}); {remedy}", True)
        elif not _allowed(installed, allowed):
            yield Check(name, wrong, f"{installed} is not {allowed}; pip install '{name}{allowed}'", True)
        else:
            yield Check(name, "ok", installed, True)


def _extra(extra: str, versions: dict[str, str | None]) -> Check:
    """Whether the packages of an extra are installed."""
    absent = [name for name, installed in versions.items() if installed is None]
    if absent:
        return Check(f"extra {extra}", "missing", f"{EXTRAS[extra]}: {install_command(extra)}")
    return Check(f"extra {extra}", "ok", f"{EXTRAS[extra]}; {', '.join(versions)}")


def _requirements() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The packages of the base installation and of each extra, with their allowed versions.

    Only torch if anisoscope itself is not installed.
    """
    try:
        lines = requires("anisoscope") or []
    except PackageNotFoundError:
        lines = ["torch"]
    needed: dict[str, str] = {}
    extras: dict[str, dict[str, str]] = {extra: {} for extra in EXTRAS}
    for line in lines:
        package = re.match(r"([\w.-]+)\s*([^;]*)", line.strip())
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if package is not None and extra is None:
            needed[package[1]] = package[2].strip()
        elif package is not None and extra is not None and extra[1] in extras:
            extras[extra[1]][package[1]] = package[2].strip()
    return needed, {extra: packages for extra, packages in extras.items() if packages}


def _allowed(installed: str, allowed: str) -> bool:
    """Whether a version is allowed.

    >>> _allowed("2.13.0+cpu", ">=2.9"), _allowed("4.50.1", "<6,>=5.0")
    (True, False)
    """
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # comes with our dependencies; without it the check is skipped
        return True
    return SpecifierSet(allowed).contains(installed, prereleases=True)


def _version(name: str) -> str | None:
    for package in (name, f"{name}-skinny"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


# --- devices ------------------------------------------------------------------------------------------------------


def _products() -> Iterator[Check]:
    """A matrix product on the processor and on each accelerator."""
    output, failed = _output(_PRODUCT, "cpu", "float32", "bfloat16")
    plain = half = None
    if failed:  # one by one, to see which
        output, plain = _output(_PRODUCT, "cpu", "float32")
        half = _trial(_PRODUCT, "cpu", "bfloat16")
    yield Check("float32 on the CPU", "broken" if plain else "ok", plain or f"{os.cpu_count()} cores")
    if plain:
        return
    detail = f"{half}; half precision is loaded as float32" if half else "works; weights are still loaded as float32"
    yield Check("bfloat16 on the CPU", "limited" if half else "ok", detail)
    devices: dict[str, str] = json.loads(output.splitlines()[-1])
    if not devices:
        yield Check("GPU", "missing", "not found; everything works on the CPU, but large models are slow")
    for name, about in devices.items():
        problem = _trial(_PRODUCT, name, "float32")
        yield Check(name, "limited" if problem else "ok", problem or about)


# --- folders and programs ------------------------------------------------------------------------------------------


def _folder(path: Path, what: str, state: str, remedy: str) -> Check:
    """Whether a folder can be written, and the free space."""
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(what, state, f"{path} cannot be written ({error.strerror or error}); {remedy}")
    detail = f"{path} can be written, {free / 1e9:.0f} GB free"
    return Check(what, "limited" if free < _LITTLE else "ok", detail)


def _hub() -> Check:
    """Whether models may be downloaded, and where they are stored; nothing is sent."""
    what = "Hugging Face hub"
    try:
        from huggingface_hub import constants
    except ImportError:
        return Check(what, "missing", f"models from the hub and from folders: {install_command('hf')}")
    cache = Path(constants.HF_HUB_CACHE)
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    stored = f"{models} models in {cache}"
    if constants.HF_HUB_OFFLINE:
        return Check(what, "limited", f"offline mode is on (HF_HUB_OFFLINE): only stored models, {stored}")
    return Check(what, "ok", f"downloads are allowed; {stored}")


def _browser(thorough: bool) -> Check:
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return Check("chromium", "missing", "only needed for tests of the pages; reports open in any browser")
    if not thorough:
        return Check("chromium", "ok", f"{browser}; --thorough opens a page in it")
    with tempfile.TemporaryDirectory() as profile:
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom")
        output, problem = _run([browser, *options, "data:text/html,<p>it works</p>"])
    works = not problem and "it works" in output
    return Check(
        "chromium",
        "ok" if works else "limited",
        f"{browser} {'opened a page' if works else problem or 'printed nothing'}",
    )


# --- trials -------------------------------------------------------------------------------------------------------


def _trial(program: str, *arguments: str) -> str | None:
    """Why a small program fails in a subprocess, or None."""
    return _output(program, *arguments)[1]


def _output(program: str, *arguments: str) -> tuple[str, str | None]:
    return _run([sys.executable, "-c", program, *arguments])


def _run(command: Sequence[str]) -> tuple[str, str | None]:
    """What a command printed, and why it failed: the signal, or the last line of its errors; None if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_SECONDS} seconds"
    except OSError as error:
        return "", f"cannot be started: {error.strerror or error}"
    if done.returncode < 0:
        return done.stdout, f"killed by signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200]
    return done.stdout, last if done.returncode else None
