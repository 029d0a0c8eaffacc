"""Measures some parts of the accuracy benchmark, or writes what was measured into docs/accuracy.md.

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
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none writes the page")
    parser.add_argument("--quick", action="store_true", help="few cells, few data sets: does it run?")
    given = parser.parse_args()
    odd = [part for part in given.parts if part not in PARTS]
    if odd:
        parser.error(f"no part is called {', '.join(odd)}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    with import_module("threadpoolctl").threadpool_limits(1):
        for part in given.parts:
            run(part, Settings(given.quick, 1))
    if not given.parts:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
