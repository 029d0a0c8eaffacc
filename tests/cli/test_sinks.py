"""The table of massive tokens in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from anisoscope.cli.sinks import sinks_table
from anisoscope.measurement.sink_profile import SinkClass, SinkCoordinate, Sinks, SinkSite


def printed(found: Sinks, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(sinks_table(found))
    return console.export_text()


def profile(massive: int = 1234) -> Sinks:
    coordinates = (SinkCoordinate(5170, 0.914, 3.0),)
    classes = (SinkClass("delimiter", 2000, massive, massive, 61.5, 1.6e-18, coordinates),)
    site = SinkSite("resid.21", 65_536, 576, 123.4, 617.0, massive, 0.0, classes)
    return Sinks({"source": "./a-model-with-a-long-name"}, {"tokens": 65_536}, (site,))


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_is_whole_at_any_width(width: int) -> None:
    text = printed(profile(), width)
    for part in ("resid.21", "617", "delimiter:", "62", "2e-18", "5170", "91 %"):
        assert part in text, part
    assert text.count("1,234") == 3
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    assert len(text.splitlines()) == (6 if width == 80 else 4)


def test_a_profile_without_massive_tokens_has_one_row() -> None:
    assert "none" in printed(profile(massive=0), 80)
