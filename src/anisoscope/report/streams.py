"""Streams in words: what the numbers of a chart or a table describe, if it is not the residual stream."""

from __future__ import annotations

_NAMES = {
    "resid": "residual stream",
    "attn": "attention outputs",
    "mlp": "MLP outputs",
    "q": "queries",
    "k": "keys",
    "q.pre": "queries before rotary embedding",
    "k.pre": "keys before rotary embedding",
    "pattern": "attention",
    "weight": "weights",
    "in": "inputs of modules",
}
_STACKS = {"enc": "encoder", "dec": "decoder"}
UNNAMED = ("resid", "pattern", "vectors")  # the metric's name is enough


def stream_name(stream: str) -> str:
    """The name of a stream for a reader.

    >>> stream_name("resid"), stream_name("grad.resid"), stream_name("enc.q"), stream_name("grad.weight")
    ('residual stream', 'gradients', 'encoder queries', 'gradients of weights')
    """
    gradient, rest = stream.startswith("grad."), stream.removeprefix("grad.")
    stack, dot, kind = rest.partition(".")
    if not dot or stack not in _STACKS:
        stack, kind = "", rest
    name = " ".join(part for part in (_STACKS.get(stack, ""), _NAMES.get(kind, kind)) if part)
    if not gradient:
        return name
    return f"gradients of {name}" if (stack, kind) != ("", "resid") else "gradients"


def metric_title(metric: str, stream: str | None) -> str:
    """The name of a metric with its stream, unless the stream is the residual stream or there are several.

    >>> metric_title("isoscore", "resid"), metric_title("isoscore", "k"), metric_title("isoscore", None)
    ('isoscore', 'isoscore of keys', 'isoscore')
    """
    if stream is None or stream in UNNAMED or (stream == "grad.resid" and "gradient" in metric):
        return metric
    return f"{metric} of {stream_name(stream)}"
