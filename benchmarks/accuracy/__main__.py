"""Measure parts of the accuracy benchmark, or write the results to docs/accuracy.md.

python -m benchmarks.accuracy errors bias coverage dimensions [--quick]
python -m benchmarks.accuracy                                    writes the page
"""

from __future__ import annotations

import argparse
from importlib import import_module

import torch

from benchmarks.accuracy.page import PAGE, page
from benchmarks.accuracy.parts import PARTS, run
from benchmarks.harness import Settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; without any, write the page"
    )
    parser.add_argument("--quick", action="store_true", help="few cells, few data sets: check that it runs")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"No part named {', '.join(unknown)}. Choose from {', '.join(PARTS)}.")
    torch.set_num_threads(1)
    with import_module("threadpoolctl").threadpool_limits(1):
        for part in options.parts:
            run(part, Settings(options.quick, 1))
    if not options.parts:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
