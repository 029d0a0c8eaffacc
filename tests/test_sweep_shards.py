"""Workers that measure disjoint shares of the documents: their statistics add to those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.capture import Layout, find_layout
from anisoscope.data.batches import model_batches
from anisoscope.measurement.document_shares import Share
from anisoscope.measurement.engine import Engine
from anisoscope.models.open import Opened, open_model
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collector import Collector
from anisoscope.stats.documents import Documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, token_table
from anisoscope.stats.sample import Extremes, Sample
from anisoscope.sweep import sweep
from tests import model_folders
from tests.sweep_folders import checkpoint_series, documents

NAMES = ["Moments", "Directions", "Documents", "Norms", "Sample", "Extremes"]


def stream(n: int, longest: int, seed: int) -> Rows:
    """Rows of documents of random length, one of them huge, in blocks of 8 rows."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (n,), generator=chance)
    document = torch.repeat_interleave(torch.arange(n), lengths)[:n]
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))[document]
    x = torch.randn(n, 6, generator=chance, dtype=torch.float64)
    x[n // 3] *= 1000
    position = torch.arange(n) - starts
    return Rows(x, token_table(document, position, offset=position, block=starts // 8))


def collected(rows: Rows, batch: int = 50) -> Collector:
    collector = Collector(NAMES, sample=64, extremes=4, blocks=4, sinks=True)
    for first in range(0, len(rows.tokens), batch):
        collector.add(rows.take(slice(first, first + batch)))
    return collector


@pytest.mark.parametrize("shares", [2, 3, 7])
@pytest.mark.parametrize("n", [40, 400])
def test_collectors_of_shares_add_to_the_collector_of_all(n: int, shares: int) -> None:
    rows = stream(n, 12, seed=n + shares)
    whole = collected(rows).finish()
    parts = [collected(rows.take((rows.tokens.block % shares == place).nonzero()[:, 0])) for place in range(shares)]
    total = parts[-1]
    for part in parts[:-1]:
        total.absorb(part.part())
    assert_same_cloud(total.finish(), whole)


@pytest.mark.parametrize("first", [0, 1])
def test_collectors_that_have_joined_their_blocks_more_or_less_often_add_too(first: int) -> None:
    rows = stream(400, 12, seed=5)
    early = rows.tokens.block < 6  # these alone need no joining
    parts = [collected(rows.take(part.nonzero()[:, 0])) for part in (early, ~early)]
    total, other = parts[first], parts[1 - first]
    assert other.part().level != total.part().level
    total.absorb(other.part())
    assert_same_cloud(total.finish(), collected(rows).finish())


def assert_same_cloud(found: Cloud, whole: Cloud) -> None:
    assert [block.number for block in found.blocks] == [block.number for block in whole.blocks]
    torch.testing.assert_close(found.get(Moments).scatter, whole.get(Moments).scatter, rtol=1e-12, atol=1e-6)
    assert found.get(Moments).n == whole.get(Moments).n
    assert torch.equal(found.get(Sample).x, whole.get(Sample).x)
    assert torch.equal(found.get(Sample).table, whole.get(Sample).table)
    assert torch.equal(found.get(Extremes).table, whole.get(Extremes).table)
    for name in ("documents", "all_rows", "all_square", "all_unit_square"):
        assert getattr(found.get(Documents), name) == pytest.approx(getattr(whole.get(Documents), name))
    for mine, theirs in zip(found.blocks, whole.blocks, strict=True):
        assert mine.load()["Moments"].n == theirs.load()["Moments"].n


def survey(opened: Opened, layout: Layout, share: Share | None = None) -> Engine:
    metrics = ["mean_cosine", "isoscore", "two_nn", "mean_cosine_across_documents", "attention_entropy", "q_drift"]
    options: dict[str, Any] = {"special": True, "sample": 300, "seed": 0, "tokens": 1500, "share": share}
    return Engine(opened.model, layout, ["embed", "resid", "pattern"], metrics, **options)


@pytest.mark.parametrize("shares", [2, 5])
def test_surveys_of_shares_add_to_the_survey_of_all(tmp_path: Path, shares: int) -> None:
    opened = open_model(model_folders.gpt2(tmp_path / "model"))
    text = documents(tmp_path / "text.jsonl", 80)
    layout = find_layout(opened.model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)})

    def batches(size: int) -> Any:
        return model_batches(opened, text, window=64, batch=size, tokens=1500)

    whole = survey(opened, layout)
    whole.run(batches(4))
    total = survey(opened, layout)
    for place in range(shares):
        part = survey(opened, layout, Share(place, shares))
        part.run(batches(4 * shares))
        part.save(tmp_path / str(place))
        again = survey(opened, layout)
        again.load(tmp_path / str(place))
        total.absorb(again)
    assert total.counted == whole.counted
    assert_same_numbers(numbers(total), numbers(whole))


def numbers(found: Engine) -> dict[tuple[Any, ...], tuple[float | None, float | None]]:
    return {
        (m.record.site, m.record.metric, m.record.tokens, m.record.index): (m.record.value, m.record.error)
        for done in found.evaluated()
        for m in done.measured
    }


def assert_same_numbers(found: dict[Any, Any], whole: dict[Any, Any]) -> None:
    """Values to 1e-6, error bars to what a difference of nearly equal numbers leaves of that."""
    assert found.keys() == whole.keys()
    assert any(error is not None for _, error in whole.values())
    for key, (value, error) in whole.items():
        assert found[key][0] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), key
        assert found[key][1] == (None if error is None else pytest.approx(error, rel=1e-3, abs=1e-7)), key


def test_a_sweep_in_shards_has_the_records_of_a_sweep_without(tmp_path: Path) -> None:
    folder = checkpoint_series(tmp_path / "train", (0, 10))
    request: dict[str, Any] = {"text": documents(tmp_path / "text.jsonl"), "tokens": 600, "window": 32}
    request |= {"metrics": ["mean_cosine", "two_nn"], "sites": ["resid"]}
    one = sweep(folder, out=tmp_path / "one", **request)
    three = sweep(folder, out=tmp_path / "three", shards=3, **request)
    assert (one.measured, three.measured) == (2, 2)
    assert not one.failed
    assert not three.failed
    assert_same_numbers(of_run(three.runs[0]), of_run(one.runs[0]))
    assert not list((tmp_path / "three" / "shares").iterdir())  # what was counted is removed when it is added
    assert anisoscope.Run.open(three.runs[0]).info["data"] == anisoscope.Run.open(one.runs[0]).info["data"]
    again = sweep(folder, out=tmp_path / "three", shards=2, **request)
    assert (again.measured, again.skipped) == (0, 2)  # however the documents are split, it is the same task


def of_run(path: Path) -> dict[tuple[Any, ...], tuple[float | None, float | None]]:
    return {
        (r.step, r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())): (r.value, r.error)
        for r in anisoscope.Run.open(path).records()
    }
