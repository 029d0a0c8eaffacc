"""Rows of sequences: last tokens, means and first tokens, against pooling by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope import metrics
from anisoscope.data.inputs import as_batch
from anisoscope.errors import InputError, MetricError
from anisoscope.measurement.current_batch import SequenceSinks, first_of_each, last_of_each, sequence_means
from anisoscope.records import Site
from tests.tiny_models import build

NAMES = ["mean_cosine", "isoscore"]


def padded() -> tuple[Any, dict[str, Tensor]]:
    """A tiny GPT-2, and 24 sequences of 4 to 12 tokens, padded on the right, or on the left for every second one."""
    model, _ = build("gpt2")
    ids = torch.randint(3, 50, (24, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(24, 12, dtype=torch.int64)
    for row in range(24):
        mask[row, : 4 + row % 9] = 1
        mask[row] = mask[row].flip(0) if row % 2 else mask[row]
    return model, {"input_ids": ids, "attention_mask": mask}


def states(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states
    return {"embed": hidden[0], "resid.0": hidden[1]}


def values(run: anisoscope.Run, tokens: str = "all") -> dict[tuple[str, str], float]:
    return {(r.site, r.metric): r.value for r in run if r.tokens == tokens and r.value is not None}


def pooled_by_hand(x: Tensor, mask: Tensor, kind: str) -> Tensor:
    """One row per sequence, in a plain loop."""
    rows = []
    for sequence, counts in zip(x.double(), mask.bool(), strict=True):
        real = sequence[counts]
        rows.append({"last": real[-1], "cls": real[0], "mean": real.mean(0), "no-sink": real[1:].mean(0)}[kind])
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
def test_rows_of_sequences_are_those_pooled_by_hand(kind: str) -> None:
    model, inputs = padded()
    batches = [{name: x[first : first + 5] for name, x in inputs.items()} for first in range(0, 24, 5)]
    run = anisoscope.measure(model, batches, rows=kind, metrics=NAMES)
    for site, x in states(model, inputs).items():
        rows = pooled_by_hand(x, inputs["attention_mask"], kind)
        for name in NAMES:
            expected = getattr(metrics, name)(rows)
            assert values(run)[site, name] == pytest.approx(expected, rel=1e-4), (site, name)
    assert {record.n for record in run} == {24}
    assert run.info["settings"]["rows"] == run.info["rows"] == kind
    assert {record.tokens for record in run} == ({"all", "no-sink"} if kind == "mean" else {"all"})
    assert all(str(record.error_kind).endswith("-sequences") for record in run)  # which stay the units of error


def test_a_mean_without_sinks_leaves_out_first_tokens() -> None:
    model, inputs = padded()
    run = anisoscope.measure(model, [inputs], rows="mean", metrics=NAMES, errors=False)
    for site, x in states(model, inputs).items():
        rows = pooled_by_hand(x, inputs["attention_mask"], "no-sink")
        assert values(run, "no-sink")[site, "isoscore"] == pytest.approx(metrics.isoscore(rows), rel=1e-4)


class Same(nn.Module):
    """A block that returns its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.linear(x)


class Spiky(nn.Module):
    """Embeds tokens; token 7 has a hundred times the length of the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 16)
        self.embedding.weight.data[7] *= 100
        self.blocks = nn.ModuleList([Same(), Same()])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_mean_without_sinks_leaves_out_massive_tokens() -> None:
    model, ids = Spiky(), torch.randint(8, 64, (20, 10), generator=torch.Generator().manual_seed(1))
    ids[3, 4] = ids[9, 6] = 7
    options: dict[str, Any] = {"sites": ["resid"], "metrics": ["isoscore"], "errors": False}
    run = anisoscope.measure(model, [{"input_ids": ids}], rows="mean", **options)
    keep = (ids != 7) & (torch.arange(10) > 0)
    x = model(ids).detach().double()
    rows = torch.stack([row[counts].mean(0) for row, counts in zip(x, keep, strict=True)])
    assert values(run, "no-sink")["resid.1", "isoscore"] == pytest.approx(metrics.isoscore(rows), rel=1e-5)
    assert values(run)["resid.1", "isoscore"] < 0.1  # two sequences dominate


def test_a_resumed_pass_of_means_equals_one_that_was_never_stopped(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 1024, "window": 32, "rows": "mean", "metrics": NAMES}
    whole = values(anisoscope.measure(folder, **request), "no-sink")
    seen = 0

    def stop(more: int) -> None:
        nonlocal seen
        seen += more
        if seen > 400:
            raise KeyboardInterrupt

    half = anisoscope.measure(folder, **request, out=tmp_path / "run", progress=stop)
    assert half.info["interrupted"]
    assert values(anisoscope.measure(folder, **request, out=tmp_path / "run"), "no-sink") == whole


def test_what_makes_no_sense_for_rows_of_sequences_is_refused() -> None:
    model, inputs = padded()
    with pytest.raises(InputError, match=r"No kind of rows named 'lats'. Did you mean 'last'"):
        anisoscope.measure(model, [inputs], rows="lats")
    with pytest.raises(InputError, match="'cls' are first tokens"):
        anisoscope.measure(model, [inputs], rows="cls", special=False)
    with pytest.raises(MetricError, match="The rows come without tokens"):
        anisoscope.measure(model, [inputs], rows="mean", metrics=["self_similarity"])


def test_a_sink_stays_one_at_later_sites() -> None:
    batch = as_batch(padded()[1], 0)
    sinks, x = SequenceSinks(batch), torch.ones(24, 12, 4)
    first = batch.offset == 0
    assert torch.equal(sinks.at(Site("embed"), x), first)
    large = x.clone()
    large[2, 3] = 10.0
    assert sinks.at(Site("attn", 0), large).equal(first)  # not a site of the stream
    assert bool(sinks.at(Site("resid", 0), large)[2, 3])
    assert bool(sinks.at(Site("resid", 1), x)[2, 3])


def test_masks_and_means_ignore_padding() -> None:
    counts = torch.tensor([[False, True, True], [True, True, False]])
    assert last_of_each(counts).nonzero().tolist() == [[0, 2], [1, 1]]
    assert first_of_each(counts).nonzero().tolist() == [[0, 1], [1, 0]]
    x = torch.tensor([[[torch.nan], [2.0], [4.0]], [[1.0], [5.0], [torch.inf]]], dtype=torch.float16)
    assert sequence_means(x, counts).tolist() == [[3.0], [3.0]]
