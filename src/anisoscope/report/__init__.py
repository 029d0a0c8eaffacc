"""Write a page with sentences, charts and all numbers of one or more runs: `anisoscope.report(run, "page.html")`.

This package makes tables and charts from records. It reads runs only: neither torch nor metrics are imported here. The
package itself can be called, so that the function and the package share a name.

Args:
    runs: A run, or several to compare.
    path: The .html file to write. It needs no network and no other file.

Returns:
    The path.

Raises:
    InputError: The path does not end in .html, its folder does not exist, or there are no records.

Example:
    >>> anisoscope.report(run, "page.html")                                # doctest: +SKIP
    >>> anisoscope.report([run_a, run_b], "both.html")                     # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anisoscope.store.run import Run


class _CallablePackage(ModuleType):
    """A package that can be called: importing any of its modules puts it in place of a function of the same name."""

    def __call__(self, runs: Run | Sequence[Run], path: str | Path) -> Path:
        from anisoscope.report.views import write_report

        return write_report(runs, path)


sys.modules[__name__].__class__ = _CallablePackage
