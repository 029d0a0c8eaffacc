"""A recorded pass gives the engine what the model gave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.measurement import recorded_model
from anisoscope.measurement.recorded_model import RecordedModel, record_windows, recorded_batches, recorded_sites
from anisoscope.models.open import open_model
from anisoscope.records import Site

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Call me Ishmael.", "It was the best of times"]


def test_recorded_tensors_are_seen_at_their_sites_in_any_order(folder: Path) -> None:
    opened = open_model(folder)
    layout = find_layout(opened.model)
    sites = recorded_sites(layout, ["embed", "resid", "final"])
    windows = record_windows(opened.model, layout, sites, model_batches(opened, TEXTS, window=8, batch=2))
    windows.reverse()
    model = RecordedModel(layout)
    (batch,) = recorded_batches(windows, 99, "documents")
    seen: dict[str, Tensor] = {}

    def take(site: Site, x: Tensor) -> None:
        seen[str(site)] = x

    with observe_sites(model, sites, take, layout=model.layout) as log:
        model(**batch.inputs)
    log.require(sites)
    assert list(seen) == [str(site) for site in sites]
    for number, window in enumerate(windows):
        assert batch.counts[number].sum() == window.tokens
        for name, x in seen.items():
            assert torch.equal(x[number, : window.tokens], window.tensors[name])
    documents = [window.document for window in windows]
    assert sorted(set(documents)) == [0, 1, 2]
    assert batch.document[:, 0].tolist() == [2 - document for document in documents]


def test_without_names_the_middle_of_the_stream_is_recorded(folder: Path) -> None:
    layout = find_layout(open_model(folder).model)
    assert [str(site) for site in recorded_sites(layout, [])] == ["resid.0"]  # of two layers


def test_sites_inside_a_layer_are_refused(folder: Path) -> None:
    layout = find_layout(open_model(folder).model)
    with pytest.raises(InputError, match=r"attn.0 cannot be recorded. Choose from embed"):
        recorded_sites(layout, ["resid", "attn"])


def test_more_rows_than_memory_allows_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_model, "MOST_BYTES", 1 << 10)
    opened = open_model(folder)
    layout = find_layout(opened.model)
    with pytest.raises(InputError, match="fewer --sites or --tokens"):
        record_windows(opened.model, layout, recorded_sites(layout, []), model_batches(opened, TEXTS))
