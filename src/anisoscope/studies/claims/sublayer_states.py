"""λ1/Σλ over all states of a lab model, two per layer: after attention and after the feed-forward part.

A shape over layers needs at least twelve states. Six layers have thirteen if the states between attention and the
feed-forward part are counted too.
"""

from __future__ import annotations

from torch import Tensor, nn

from anisoscope.metrics import find
from anisoscope.metrics.evaluate import evaluate
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.records import Record
from anisoscope.stats.collect import cloud_of
from anisoscope.studies.claims.hidden_states import Batches, states

SHARE_OF_FIRST = "spectral_anisotropy"


def sublayer_states(model: nn.Module, batches: Batches) -> list[Tensor]:
    """Return the rows of the embedding and of every state after it, (tokens, d) each; the last is after the norm.

    The model must add each part to the stream (norms before the parts): the state after attention is the layer's output
    minus what the feed-forward part added.
    """
    rows = states(model, batches, ["embed", "mlp", "resid", "final"])
    layers = sum(site.startswith("resid.") for site in rows)
    stream = [rows["embed"]]
    for layer in range(layers):
        after = rows[f"resid.{layer}"]
        stream += [after - rows[f"mlp.{layer}"], after]
    stream[-1] = rows["final"]
    return stream


def sublayer_records(model: nn.Module, batches: Batches, window: int) -> list[Record]:
    """Return λ1/Σλ of every state, of all tokens and without first tokens of windows and massive tokens.

    Args:
        model: A lab model.
        batches: Whole windows.
        window: Tokens per window.
    """
    metric = find([SHARE_OF_FIRST])[0]
    records = []
    stream = sublayer_states(model, batches)
    keep = stream[0].new_ones(len(stream[0])).bool()
    keep[::window] = False
    for index, rows in enumerate(stream):
        norm = rows.norm(dim=1)
        if index < len(stream) - 1:  # after the norm all rows are equally long
            keep &= norm <= MASSIVE * norm.median()
        site = "embed" if index == 0 else f"resid.{index - 1}"
        for tokens, kept in (("all", rows), ("no-sink", rows[keep])):
            cloud = cloud_of(kept, metric.sources)
            value = evaluate(cloud, [metric], site=site, errors=False)[0].record.value
            records.append(Record(site, SHARE_OF_FIRST, value, tokens=tokens))
    return records
