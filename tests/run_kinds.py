"""A run of every kind that the commands write, small: what a report must be able to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.store.run import Run
from tests import report_runs

_TEXT = "the cat sat on the mat . a dog ran after the cat and the bird . "
_SMALL = ["--layers", "3", "--width", "16", "--heads", "2", "--context", "16", "--batch", "4", "--steps", "8"]
# The runs of each page.
PAGES = {
    "measure": ["measure"],
    "vectors": ["vectors"],
    "weights": ["weights"],
    "heads": ["heads"],
    "training": ["decoder"],
    "tangent": ["tangent"],
    "sweep": ["sweep"],
    "two runs": ["encoder", "decoder"],
    "two measurements": ["heads", "vectors"],
    "claims": ["claims"],
}


def _command(*arguments: object) -> None:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, f"{' '.join(map(str, arguments))}\n{done.output}\n{done.exception!r}"


def make_runs(folder: Path) -> dict[str, list[Run]]:
    """The runs of each page."""
    text, vectors = folder / "text.txt", folder / "vectors.npy"
    words = np.random.default_rng(0).choice(_TEXT.split(), 6000)
    text.write_text(" ".join(words))
    np.save(vectors, np.random.default_rng(1).standard_normal((300, 8)).astype(np.float32))
    for kind in ("decoder", "encoder"):
        _command("lab", "train", "--kind", kind, "--text", text, "--out", folder / kind, *_SMALL)
    model = folder / "decoder" / "checkpoints" / "step-8"
    data = ["--text", text, "--tokens", "512"]
    _command("measure", model, *data, "--out", folder / "measure")
    _command("measure", model, *data, "--sites", "q,k,pattern,resid", "--out", folder / "heads")
    _command("measure", model, "--weights", "--out", folder / "weights")
    _command("measure", vectors, "--out", folder / "vectors")
    few = ["--metrics", "isoscore,two_nn,spectrum,massive_tokens"]
    _command("sweep", folder / "decoder", *data, *few, "--out", folder / "sweep")
    tests = ["--loss", "next_token", "--rank", "4", "--ranks", "2,4", "--tokens", "256", "--window", "16"]
    _command("tangent", model, "--text", text, "--proxies", "pca,mean", *tests, "--out", folder / "tangent")
    report_runs.make_run(folder / "claims", report_runs.verdicts())
    return {page: [Run.open(folder / name) for name in names] for page, names in PAGES.items()}
