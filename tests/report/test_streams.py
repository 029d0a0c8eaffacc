"""Streams in charts and tables."""

from __future__ import annotations

from anisoscope.report.streams import metric_title, stream_label


def test_the_residual_stream_needs_no_name_and_every_other_stream_has_one() -> None:
    assert metric_title("isoscore", "resid") == "isoscore"
    assert metric_title("isoscore", "grad.resid") == "isoscore of gradients"
    assert metric_title("gradient_energy", "grad.resid") == "gradient_energy"
    assert metric_title("isoscore", "q") == "isoscore of queries"
    assert metric_title("isoscore", None) == "isoscore"


def test_every_stream_has_a_label() -> None:
    assert stream_label("grad.weight") == "gradients of weights"
    assert stream_label("resid") == "residual stream"
    assert stream_label("something") == "something"
