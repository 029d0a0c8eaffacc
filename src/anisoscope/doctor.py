"""What is installed here and what works: the first thing to look at when something does not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_NEEDED = ("torch", "numpy", "safetensors", "transformers", "tokenizers", "pandas", "pyarrow", "altair", "starlette")
_OPTIONAL = {
    "ray": "sweeps on a cluster",
    "lightning": "the Lightning callback",
    "datasets": "text by datasets id",
    "wandb": "logging to Weights & Biases",
    "tensorboard": "logging to TensorBoard",
    "mlflow": "logging to MLflow",
    "trackio": "logging to trackio",
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox")


@dataclass(frozen=True)
class Check:
    """One thing looked at: `state` is "ok", "missing" (optional, not there) or "broken" (needed, not working)."""

    what: str
    state: str
    detail: str


def checks() -> Iterator[Check]:
    """Everything that is looked at, the needed things first."""
    yield Check("Python", "ok" if sys.version_info >= (3, 11) else "broken", platform.python_version())
    for name in _NEEDED:
        found = _version(name)
        yield Check(name, "broken" if found is None else "ok", found or "not installed: pip install anisoscope again")
    yield from _devices()
    yield _folder(Path(tempfile.gettempdir()), "scratch folder")
    yield _folder(Path.cwd(), "this folder (runs are written here)")
    for name, purpose in _OPTIONAL.items():
        found = _version(name) if find_spec(name) is not None else None
        yield Check(name, "missing" if found is None else "ok", found or f"only needed for {purpose}")
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    detail = Path(browser).name if browser else "only needed for tests of the pages; reports open in any browser"
    yield Check("browser", "ok" if browser else "missing", detail)


def _version(name: str) -> str | None:
    for package in (name, f"{name}-skinny"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _devices() -> Iterator[Check]:
    import torch

    threads = torch.get_num_threads()
    yield Check("processor", "ok", f"{os.cpu_count()} cores, torch uses {threads} threads")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(number).total_memory / 1e9
            yield Check(f"cuda:{number}", "ok", f"{torch.cuda.get_device_name(number)}, {memory:.0f} GB")
    elif torch.backends.mps.is_available():
        yield Check("mps", "ok", "Apple GPU; sums in float64 are kept on the CPU")
    else:
        yield Check("GPU", "missing", "none is seen; everything works on the CPU, larger models slowly")


def _folder(path: Path, what: str) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            free = shutil.disk_usage(path).free / 1e9
    except OSError as why:
        return Check(what, "broken", f"cannot be written: {why.strerror}")
    return Check(what, "ok", f"{free:.0f} GB free")
