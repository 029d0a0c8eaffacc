"""A pytest plugin that records how close each numeric assertion came to its limit: `-p tests.margins --margins FILE`.

`tests/kernels.py` runs the numeric tests under several kernels with it and prints the assertions that came close.
It records comparisons of floats in `assert`, `pytest.approx`, `torch.testing.assert_close` and
`numpy.testing.assert_allclose`. The gap of a comparison is its distance to the limit as a share of the limit, or the
share of a tolerance that is unused: at 0 the test is about to fail.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import _pytest.assertion.rewrite as rewrite
import numpy as np
import pytest
import torch

_SCALAR: type = type(pytest.approx(1.0))
_APPROX: type = _SCALAR.__mro__[1]  # what all kinds of approx have in common


def number(value: Any) -> float | None:
    """A real number as a float; anything else, and any text or truth value, is None."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item() if math.prod(value.shape) == 1 else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_whole(value: Any) -> bool:
    """Whether a value counts something, so that no rounding can move it."""
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point()
    return isinstance(value, int | np.integer)


def gap_of_order(left: Any, right: Any) -> float | None:
    """How far two ordered numbers are apart, as a share of the larger one."""
    a, b = number(left), number(right)
    if a is None or b is None or (is_whole(left) and is_whole(right)) or not (math.isfinite(a) and math.isfinite(b)):
        return None
    size = max(abs(a), abs(b))
    return abs(a - b) / size if size else 0.0


def gap_of_approx(actual: Any, wanted: Any) -> float | None:
    """The part of a `pytest.approx` tolerance that is left, the smallest over its elements."""
    if isinstance(wanted, _SCALAR):
        a, b = number(actual), number(getattr(wanted, "expected", None))
        tolerance = float(getattr(wanted, "tolerance", 0))
        if a is None or b is None or not tolerance or not math.isfinite(a - b):
            return None
        return 1 - abs(a - b) / tolerance
    if isinstance(wanted.expected, np.ndarray):
        actual = np.asarray(actual)
    pairs = wanted._yield_comparisons(actual)
    gaps = [gap_of_approx(a, wanted._approx_scalar(b)) for a, b in pairs]
    return min((gap for gap in gaps if gap is not None), default=None)


def gap_of_close(actual: Any, wanted: Any, relative: float, absolute: float) -> float | None:
    """The part of the tolerance `absolute + relative · |wanted|` that is left, the smallest over the elements."""
    a, b = (torch.as_tensor(value).detach().double().cpu() for value in (actual, wanted))
    room = absolute + relative * b.abs()
    off = (a - b).abs()[(room > 0) & torch.isfinite(a) & torch.isfinite(b)]
    room = room[(room > 0) & torch.isfinite(a) & torch.isfinite(b)]
    return 1 - float((off / room).max()) if off.numel() else None


class Margins:
    """Keeps the smallest gap of every assertion of every test, and writes them when the tests are over."""

    def __init__(self, target: Path, root: Path) -> None:
        self.target = target
        self.root = root
        self.test = ""
        self.smallest: dict[tuple[str, str], tuple[float, str]] = {}
        self.originals: list[tuple[Any, str, Any]] = []
        self.passing = False  # inside an assertion that has passed

    def add(self, gap: float | None, text: str, frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if gap is None or not self.test or not path.is_relative_to(self.root):
            return
        key = (self.test, f"{path.relative_to(self.root)}:{frame.f_lineno}")
        if key not in self.smallest or gap < self.smallest[key][0]:
            self.smallest[key] = (gap, text)

    def compared(self, ops: Iterable[str], objects: tuple[Any, ...], frame: FrameType) -> None:
        """Every link of a chain such as `0.1 < x < 0.2`."""
        for op, left, right in zip(ops, objects, objects[1:], strict=False):
            if op == "==" and isinstance(right, _APPROX):
                self.add(gap_of_approx(left, right), f"{_short(left)} == {_short(right)}", frame)
            elif op in ("<", "<=", ">", ">="):
                self.add(gap_of_order(left, right), f"{_short(left)} {op} {_short(right)}", frame)

    def install(self) -> None:
        """Listens to pytest's rewritten assertions and to the two libraries' checks of closeness."""
        self._wrap(rewrite, "_check_if_assertion_pass_impl", lambda _: self._begin_pass)
        self._wrap(rewrite, "_call_assertion_pass", lambda _: self._end_pass)
        self._wrap(rewrite, "_saferepr", self._saferepr)
        self._wrap(rewrite, "_call_reprcompare", self._reprcompare)
        self._wrap(torch.testing, "assert_close", self._assert_close)
        self._wrap(np.testing, "assert_allclose", self._assert_allclose)

    def uninstall(self) -> None:
        for owner, name, original in self.originals:
            setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self.originals.append((owner, name, original))
        setattr(owner, name, make(original))

    def _begin_pass(self) -> bool:
        """Asked by an assertion that has passed; True makes it explain itself, which is when it is recorded."""
        self.passing = True
        return True

    def _end_pass(self, *_: Any) -> None:
        self.passing = False

    def _saferepr(self, original: Any) -> Any:
        """No text for assertions that pass: printing large tensors would take longer than the tests."""
        return lambda value: "" if self.passing else original(value)

    def _reprcompare(self, original: Any) -> Any:
        def listening(ops: Any, results: Any, expls: Any, each_obj: Any) -> Any:
            self.compared(ops, each_obj, sys._getframe(1))
            return "" if self.passing else original(ops, results, expls, each_obj)

        return listening

    def _assert_close(self, original: Any) -> Any:
        def listening(actual: Any, expected: Any, *args: Any, **options: Any) -> Any:
            original(actual, expected, *args, **options)
            if isinstance(expected, torch.Tensor | float):
                rtol, atol = torch.testing._comparison.get_tolerances(
                    *(torch.as_tensor(value) for value in (actual, expected)),
                    rtol=options.get("rtol"),
                    atol=options.get("atol"),
                )
                self.add(gap_of_close(actual, expected, rtol, atol), "assert_close", sys._getframe(1))

        return listening

    def _assert_allclose(self, original: Any) -> Any:
        def listening(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **options: Any) -> Any:
            original(actual, desired, rtol=rtol, atol=atol, **options)
            self.add(gap_of_close(actual, desired, rtol, atol), "assert_allclose", sys._getframe(1))

        return listening

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        try:
            yield
        finally:
            self.test = ""

    def pytest_sessionfinish(self) -> None:
        lines = (
            json.dumps({"test": test, "line": line, "gap": gap, "text": text})
            for (test, line), (gap, text) in self.smallest.items()
        )
        self.target.write_text("".join(line + "\n" for line in lines))

    def pytest_unconfigure(self) -> None:
        self.uninstall()


def _short(value: Any) -> str:
    real = number(value)
    return f"{real:.6g}" if real is not None else str(value)[:40]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", help="folder for the smallest gap of every numeric assertion, one file per worker")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--margins")
    if not folder:
        return
    worker = getattr(config, "workerinput", {}).get("workerid", "main")
    margins = Margins(Path(folder) / f"{worker}.jsonl", config.rootpath)
    margins.install()
    config.pluginmanager.register(margins, "margins")
