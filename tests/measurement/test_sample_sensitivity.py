"""Samples of one text agree with what `measure` gives for them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anisoscope import measure, measure_rows
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement import sample_sensitivity
from anisoscope.measurement.request import Request
from anisoscope.measurement.sample_plan import SampleDesign, batch_units, first_units, shuffled_units
from anisoscope.measurement.sample_sensitivity import Listeners, model_sensitivity, vector_sensitivity
from anisoscope.store.run import Run
from tests.sweep_folders import documents

METRICS = ["mean_cosine", "isoscore", "two_nn"]
# One window per forward pass: states that differ only by rounding would give the duplicates of these texts other
# nearest neighbours.
SHARED: dict[str, Any] = {"metrics": METRICS, "window": 64, "batch": 1, "sites": ("resid.1", "final")}
LARGEST = 900
DESIGN = SampleDesign((300, LARGEST), (250,), 2)
# Rows are multiplied in float32 and summed in float64: 1e-7 of the largest number, with a factor of 100 for ratios.
CLOSE: dict[str, Any] = {"rel": 1e-5, "abs": 1e-5}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that fit into one window each."""
    path = tmp_path_factory.mktemp("texts") / "text.jsonl"
    whole = [json.loads(line)["text"] for line in documents(path, 80).read_text().splitlines()]
    path.write_text("".join(json.dumps({"text": text[:60]}) + "\n" for text in whole))
    return path


def sampled(folder: Path, texts: Path, **options: Any) -> Run:
    return model_sensitivity(folder, Request.of(text=texts, **SHARED, **options), DESIGN, listeners=Listeners())


@pytest.fixture(scope="module")
def run(folder: Path, texts: Path) -> Run:
    return sampled(folder, texts)


def values(run: Run, **own: Any) -> dict[tuple[Any, ...], float]:
    """The numbers of one sample, without the keys of the sample in the variant."""
    found = {}
    for r in run.records():
        sample = {key: x for key, x in r.variant.items() if key in ("n", "batch", "shuffle", "of batches")}
        variant = {key: x for key, x in r.variant.items() if key not in (*sample, "over")}
        if sample == own and r.value is not None:
            found[r.site, r.metric, r.tokens, json.dumps(variant)] = r.value
    return found


@pytest.fixture(scope="module")
def windows(folder: Path, texts: Path) -> list[Any]:
    """The batches of the largest sample, one window each."""
    from anisoscope.data.batches import model_batches
    from anisoscope.models.open import open_model

    return list(model_batches(open_model(folder), texts, window=64, batch=1, tokens=LARGEST))


def direct(folder: Path, windows: list[Any]) -> dict[tuple[Any, ...], float]:
    """What `measure` gives for some windows."""
    return values(measure(folder, [each.inputs for each in windows], tokens=None, **SHARED))


@pytest.mark.parametrize(
    ("shuffle", "size", "own"),
    [(0, LARGEST, {}), (0, 300, {"n": 300}), (2, LARGEST, {"shuffle": 2}), (1, 300, {"n": 300, "shuffle": 1})],
)
def test_a_sample_has_the_values_that_measure_gives_for_its_documents(
    run: Run, folder: Path, windows: list[Any], shuffle: int, size: int, own: dict[str, int]
) -> None:
    rows = np.array([int(each.counts.sum()) for each in windows])
    order = shuffled_units(np.arange(len(rows)), shuffle, seed=0)
    expected = direct(folder, [windows[number] for number in first_units(order, rows, size)])
    assert values(run, **own) == pytest.approx(expected, **CLOSE)
    assert len(expected) == 16  # three metrics, one of them twice, at two sites with and without sinks


def test_batches_have_the_mean_and_the_deviation_of_measure_over_their_documents(
    run: Run, folder: Path, windows: list[Any]
) -> None:
    rows = np.array([int(each.counts.sum()) for each in windows])
    batches = batch_units(np.arange(len(rows)), rows, 250)
    assert len(batches) == 3
    each = [direct(folder, [windows[number] for number in batch]) for batch in batches]
    for of, function in (("mean", statistics.fmean), ("std", statistics.stdev)):
        expected = {key: function([one[key] for one in each]) for key in each[0]}
        assert values(run, batch=250, **{"of batches": of}) == pytest.approx(expected, **CLOSE)


def test_the_order_changes_no_metric_of_sums_and_the_documents_do(run: Run) -> None:
    natural = values(run)
    exact = [key for key in natural if key[1] in ("mean_cosine", "isoscore")]
    for shuffle in (1, 2):
        shuffled = values(run, shuffle=shuffle)
        assert {k: shuffled[k] for k in exact} == pytest.approx({k: natural[k] for k in exact}, **CLOSE)
    drawn, other = (values(run, n=300, shuffle=shuffle) for shuffle in (1, 2))
    assert all(abs(drawn[key] - other[key]) > 1e-4 for key in exact)


def test_samples_have_error_bars_and_shuffles_have_none(run: Run) -> None:
    samples = [r for r in run.records() if "shuffle" not in r.variant and "batch" not in r.variant]
    assert all(r.error is not None for r in samples if r.metric == "mean_cosine")
    assert all(r.error is None for r in run.records() if "shuffle" in r.variant and "batch" not in r.variant)
    assert run.info["sensitivity"] == {"n": [300, LARGEST], "batches": [250], "shuffles": 2}


def test_a_complete_run_is_returned_and_another_request_is_refused(
    folder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    first = sampled(folder, texts, out=out)
    monkeypatch.setattr(sample_sensitivity, "_text_pool", None)  # nothing is measured again
    assert sampled(folder, texts, out=out).records() == first.records()
    monkeypatch.setattr(sample_sensitivity, "open_for", None)  # refused before the model is opened
    with pytest.raises(StoreError, match=r"seed \(0 before, 1 now\)"):
        sampled(folder, texts, out=out, seed=1)
    with pytest.raises(StoreError, match="another request"):
        measure(folder, text=texts, tokens=LARGEST, out=out, **SHARED)


def test_a_request_that_fails_leaves_no_folder(folder: Path, texts: Path, tmp_path: Path) -> None:
    request = Request.of(text=texts, out=tmp_path / "run", **SHARED)
    with pytest.raises(InputError, match="fewer than 99,999"):
        model_sensitivity(folder, request, SampleDesign((99_999,)), listeners=Listeners())
    assert not (tmp_path / "run").exists()


def test_rows_of_a_file_are_sampled_as_measure_rows_measures_them(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((600, 5)).astype(np.float32)
    document, names = np.repeat(np.arange(120), 5), ["mean_cosine", "two_nn"]
    np.savez(tmp_path / "rows.npz", rows=x, documents=document)
    request = Request.of(metrics=names, tensor="rows")
    run = vector_sensitivity(tmp_path / "rows.npz", request, SampleDesign((100, 600), (100,), 2), listeners=Listeners())
    order = shuffled_units(document, 1, seed=0)[:100]
    expected = measure_rows(x[order], names, documents=np.repeat(np.arange(20), 5))
    assert values(run, n=100, shuffle=1) == pytest.approx(values(expected), **CLOSE)
    assert values(run) == pytest.approx(values(measure_rows(x, names, documents=document)), **CLOSE)
