"""The words in tables, reports and messages. `anisoscope words` prints them, docs/glossary.md lists them."""

from __future__ import annotations

WORDS = {
    "site": "an address in a model: `embed`, `resid.7` (the output of layer 7, counted from 0), `q.7.3`, `final`",
    "stream": (
        "sites that one curve over the layers follows: the residual stream (`embed`, `resid.0` … `final`), "
        "`attn`, `grad.resid`"
    ),
    "resid, embed, final": "output of a layer; input of layer 0; output of the final norm",
    "rows": "the vectors at a site, one per token; of a file of vectors, its rows",
    "sink": "a token on which heads park their attention, often with huge values: mostly the first token of a window",
    "massive": "a token whose norm exceeds five medians of the norms; it stays flagged at all later layers",
    "token policy": (
        "which tokens count: `all`, or `no-sink` (without the first token of each window and massive tokens)"
    ),
    "generated": "tokens that the model itself added (`--generate`)",
    "null": "the value that rows without the structure in question would have, with the same lengths and documents",
    "block": "documents that are left out together for an error bar",
    "jackknife": "the error bar (±): how much a number varies if each block is left out in turn; one standard error",
    "sample": "rows kept for metrics that need rows, such as neighbours; the same tokens at every layer",
    "variant": "one of several forms of a metric, such as `of=eigenvalues`",
    "index": "the rank, scale, dimension or head that a number of a curve belongs to",
    "matrix": (
        "of `--weights`: `raw`, `centred` (minus its mean row), `trained` (only rows that training can have changed)"
    ),
    "basis": "a low-rank subspace fitted on activations, against which gradients are tested (`tangent`)",
    "hub, anti-hub": "of embeddings: a row among the ten nearest of very many others; a row among those of none",
    "uniformity, alignment": "of embeddings: how evenly directions cover the sphere; how close relevant pairs are",
    "remedy": "a map that is fitted on embeddings: centring, removing the strongest directions, whitening",
}


def meanings() -> dict[str, str]:
    """Return the meaning of every single word; `WORDS` lists some of them together.

    >>> meanings()["embed"]
    'output of a layer; input of layer 0; output of the final norm'
    """
    return {word: meaning for words, meaning in WORDS.items() for word in words.split(", ")}
