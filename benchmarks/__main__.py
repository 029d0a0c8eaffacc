"""Run all benchmarks, or those that are named.

    python -m benchmarks [--quick] [--threads 1] [NAME …]      names: see BENCHMARKS below, or --help

Results go to benchmarks/results/: one file per benchmark, with a table and a chart over all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

import torch

from benchmarks import neighbours as search
from benchmarks.accuracy.parts import accuracy
from benchmarks.alerts import alerts
from benchmarks.core import cosine, geometry, spectrum, stream
from benchmarks.harness import SCRATCH, Outcome, Settings, draw, figure_of, load, markdown, save, show
from benchmarks.lab import lab
from benchmarks.long import long
from benchmarks.measure import measure
from benchmarks.peers import peers, search_commands
from benchmarks.scale import scale
from benchmarks.similarity import similarity
from benchmarks.sweep import sweep
from benchmarks.tangent import tangent
from benchmarks.tracker import tracker


def neighbours(settings: Settings) -> Outcome:
    """Compare the exact search with bare products and, in alternating rounds, with the searches of other tools."""
    rows = search.run(
        quick=settings.quick,
        threads=settings.threads,
        exchange=SCRATCH / "exchange",
        commands=search_commands(settings),
    )
    return Outcome([figure_of(row) for row in rows])


BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "spectrum": spectrum,
    "cosine": cosine,
    "geometry": geometry,
    "stream": stream,
    "neighbours": neighbours,
    "similarity": similarity,
    "measure": measure,
    "tracker": tracker,
    "lab": lab,
    "tangent": tangent,
    "sweep": sweep,
    "scale": scale,
    "long": long,
    "peers": peers,
    "accuracy": accuracy,
    "alerts": alerts,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small clouds, few rounds: check that it runs")
    parser.add_argument("--threads", type=int, default=1, help="threads; ratios vary least with one")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"No benchmark named {', '.join(unknown)}. Choose from {', '.join(BENCHMARKS)}.")
    settings = Settings(options.quick, options.threads)
    torch.set_num_threads(settings.threads)
    with import_module("threadpoolctl").threadpool_limits(settings.threads):  # numpy and sklearn have their own pools
        for name in options.names or BENCHMARKS:
            outcome = BENCHMARKS[name](settings)
            show(name, outcome)
            save(name, outcome, settings)
    _summarise(settings)


def _summarise(settings: Settings) -> None:
    """Write the table and the chart over all stored results."""
    outcomes = load(settings.results)
    parts = [f"## {name}\n\n{markdown(outcome)}\n" for name, outcome in outcomes.items()]
    (settings.results / "tables.md").write_text("# Last results\n\n" + "\n".join(parts))
    draw(outcomes, settings.results / "core.png")


if __name__ == "__main__":
    main()
