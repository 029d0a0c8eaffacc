"""Streams in words."""

from __future__ import annotations

from anisoscope.report.streams import metric_title, stream_name


def test_the_residual_stream_needs_no_name_and_every_other_stream_has_one() -> None:
    assert metric_title("isoscore", "resid") == "isoscore"
    assert metric_title("isoscore", "grad.resid") == "isoscore of gradients"
    assert metric_title("isoscore", "q") == "isoscore of queries"
    assert metric_title("isoscore", "enc.resid") == "isoscore of encoder residual stream"
    assert metric_title("isoscore", None) == "isoscore"


def test_gradients_of_other_streams_name_both() -> None:
    assert stream_name("grad.weight") == "gradients of weights"
    assert stream_name("grad.enc.resid") == "gradients of encoder residual stream"
    assert stream_name("something") == "something"
