"""Streams in charts and tables: what the numbers describe, if it is not the residual stream."""

from __future__ import annotations

from anisoscope.report.sentences import stream_name

UNNAMED = ("resid", "pattern", "vectors")  # the metric's name is enough


def stream_label(stream: str) -> str:
    """The name of a stream in a legend or a list of choices.

    >>> stream_label("resid"), stream_label("grad.resid"), stream_label("enc.q"), stream_label("vectors")
    ('residual stream', 'gradients', 'encoder queries', 'vectors')
    """
    return stream_name(stream) or ("residual stream" if stream == "resid" else stream)


def metric_title(metric: str, stream: str | None) -> str:
    """The name of a metric with its stream, unless the stream is the residual stream or there are several.

    >>> metric_title("isoscore", "resid"), metric_title("isoscore", "k"), metric_title("isoscore", None)
    ('isoscore', 'isoscore of keys', 'isoscore')
    """
    if stream is None or stream in UNNAMED or (stream == "grad.resid" and "gradient" in metric):
        return metric
    return f"{metric} of {stream_label(stream)}"


def site_text(site: str) -> str:
    """A site as a reader knows it: a layer, or the address of one that is not in the residual stream.

    >>> site_text("resid.3"), site_text("grad.resid.3"), site_text("attn.3"), site_text("embed")
    ('layer 3', 'layer 3', 'attn.3', 'embed')
    """
    plain = site.removeprefix("grad.")
    number = plain.removeprefix("resid.")
    return f"layer {number}" if plain.startswith("resid.") and number.isdecimal() else plain
