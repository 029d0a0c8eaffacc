"""The whole check on planted embeddings: known answers, files larger than the sample, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import anisoscope
from anisoscope.errors import InputError, StoreError
from anisoscope.store.run import Run
from tests.oracles import embeddings as oracle

N, D, Q = 400, 20, 80


def planted(seed: int = 0) -> tuple[Any, Any, list[list[int]]]:
    """Rows with a large common mean and a few strong directions that say nothing about which row a query wants."""
    rng = np.random.default_rng(seed)
    scale = np.ones(D)
    scale[:3] = 12.0
    rows = (rng.standard_normal((N, D)) * scale + 4.0).astype(np.float32)
    noise = rng.standard_normal((Q, D)) * np.where(scale > 1, 12.0, 0.3)
    return rows, (rows[:Q] + noise).astype(np.float32), [[i, i] for i in range(Q)]


@pytest.fixture(scope="module")
def run() -> Run:
    rows, queries, pairs = planted()
    return anisoscope.embeddings(rows, queries=queries, relevant=pairs, labels=[i % 4 for i in range(N)])


def value(run: Run, metric: str, index: int | None = None, **variant: str) -> anisoscope.Record:
    records = [r for r in run.records() if r.metric == metric and r.index == index]
    [record] = [r for r in records if all(r.variant.get(key) == each for key, each in variant.items())]
    return record


def test_every_number_has_a_card_and_lies_in_its_range(run: Run) -> None:
    cards = run.metrics()
    for record in run.records():
        card = cards[record.metric]
        assert record.value is not None, record
        assert card["low"] is None or record.value >= card["low"] - 1e-9, record
        assert card["high"] is None or record.value <= card["high"] + 1e-9, record


def test_retrieval_equals_brute_force_before_and_after_whitening(run: Run) -> None:
    rows, queries, pairs = planted()
    known = {q: {r: 1.0} for q, r in pairs}
    remedy = anisoscope.fit_remedy(rows, centre=True, whiten=True)
    per_query = {}
    for name, asked, searched in (
        ("none", queries, rows),
        ("centre, whiten", remedy.apply(queries), remedy.apply(rows)),
    ):
        order = oracle.ranked(asked, searched)
        per_query[name] = oracle.ndcg(order, known)
        for k in (1, 10, 100):
            wanted = np.mean(oracle.recall(order, known, k))
            assert value(run, "recall", k, remedy=name).value == pytest.approx(wanted)
        assert value(run, "ndcg", 10, remedy=name).value == pytest.approx(np.mean(per_query[name]))
    gain = np.subtract(per_query["centre, whiten"], per_query["none"])
    change = value(run, "change", 10, of="ndcg", remedy="centre, whiten")
    assert change.value == pytest.approx(gain.mean())
    assert change.error == pytest.approx(gain.std(ddof=1) / Q**0.5)  # the jackknife of a mean


def test_retrieval_by_dot_product_equals_all_products() -> None:
    rows, queries, pairs = planted()
    known = {q: {r: 1.0} for q, r in pairs}
    found = anisoscope.embeddings(rows, queries=queries, relevant=pairs, search="dot")
    remedy = anisoscope.fit_remedy(rows, centre=True)
    for name, asked, searched in (
        ("none", queries, rows),
        ("centre", remedy.apply(queries), remedy.apply(rows)),
        ("unit length", oracle.unit(queries), oracle.unit(rows)),
        ("first 16", queries[:, :16], rows[:, :16]),
    ):
        order = np.argsort(-(np.asarray(asked, dtype=float) @ np.asarray(searched, dtype=float).T), axis=1)
        wanted = np.mean(oracle.recall(order, known, 10))
        assert value(found, "recall", 10, remedy=name).value == pytest.approx(wanted), name
    assert "as stored" not in found.info["embeddings"]["remedies"]


def test_search_by_dot_product_needs_queries() -> None:
    with pytest.raises(InputError, match="--queries"):
        anisoscope.embeddings(planted()[0], search="dot")
    with pytest.raises(InputError, match="Did you mean 'cosine'"):
        anisoscope.embeddings(planted()[0], search="cosin")


def test_a_run_shows_its_summary_and_draws_its_cosines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.show()
    shown = capsys.readouterr().out
    assert "Shorter rows and fewer bits" in shown
    assert run.info["embeddings"]["advice"][:20] in shown
    assert "cosine" in str(run.plot().to_dict())
    assert run.plot("recall").to_dict()["datasets"]


def test_the_advice_follows_the_paired_changes(run: Run) -> None:
    advice = run.info["embeddings"]["advice"]
    change = value(run, "change", 10, of="ndcg", remedy="centre, whiten")
    assert advice.startswith("Use 'centre, whiten'")
    assert f"{change.value:+.3f} ± {change.error:.3f}" in advice


def test_alignment_and_cosines_are_those_of_the_pairs(run: Run) -> None:
    rows, queries, _ = planted()
    cosine = (oracle.unit(queries) * oracle.unit(rows[:Q])).sum(1)
    assert value(run, "alignment", remedy="none").value == pytest.approx(np.mean(2 - 2 * cosine), abs=1e-6)
    shown = run.info["embeddings"]["cosines"]["none"]
    edges = np.linspace(-1, 1, 41)
    assert shown["relevant"] == pytest.approx(np.histogram(cosine, edges)[0] / Q, abs=1e-5)
    for shares in shown.values():
        assert sum(shares) == pytest.approx(1.0, abs=1e-4)


def test_hubs_are_those_of_brute_force(run: Run) -> None:
    rows, _, _ = planted()
    wanted = oracle.hubness(oracle.unit(rows))
    for part, number in wanted.items():
        assert value(run, "hubness", 10, of=part, remedy="none").value == pytest.approx(number, abs=1e-6)
    often = np.bincount(oracle.neighbours(oracle.unit(rows), 10).ravel(), minlength=N)
    row, times = run.info["embeddings"]["hubs"][0]
    assert times == often.max() == often[row]


def test_kept_neighbours_are_those_of_brute_force(run: Run) -> None:
    rows, _, _ = planted()
    before = oracle.neighbours(oracle.unit(rows), 10)
    for name, after in (
        ("centre", oracle.unit(rows - rows.mean(0))),
        ("first 16", oracle.unit(rows[:, :16])),
    ):
        near = oracle.neighbours(after, 10)
        wanted = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(before, near, strict=True)])
        # float32 rows: a pair of nearly equal distances may change places
        assert value(run, "kept_neighbours", remedy=name).value == pytest.approx(wanted, abs=0.002)
    assert value(run, "kept_neighbours", remedy="none").value == 1.0


def test_random_labels_are_not_separated(run: Run) -> None:
    record = value(run, "knn_accuracy", remedy="none")
    assert record.value == pytest.approx(record.null or 0.0, abs=0.1)
    assert (value(run, "between_share", remedy="none").value or 0.0) < 0.05


def test_rows_without_variance_in_a_direction_are_counted() -> None:
    rows, _, _ = planted()
    rows[:, 5] = rows[:, 4]
    [record] = [r for r in anisoscope.embeddings(rows).records() if r.metric == "zero_directions"]
    assert (record.value, record.null) == (1.0, 0.0)


def test_a_sample_of_a_file_gives_similar_numbers_and_the_same_retrieval(tmp_path: Path) -> None:
    rows, queries, pairs = planted()
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "queries.npy", queries)
    (tmp_path / "pairs.csv").write_text("query,row\n" + "\n".join(f"{q},{r}" for q, r in pairs))
    names: dict[str, Any] = {"queries": tmp_path / "queries.npy", "relevant": tmp_path / "pairs.csv"}
    whole = anisoscope.embeddings(tmp_path / "rows.npy", **names)
    part = anisoscope.embeddings(tmp_path / "rows.npy", sample=150, **names, out=tmp_path / "run")
    for name in ("none", "centre, whiten", "int8"):
        assert value(part, "ndcg", 10, remedy=name).value == value(whole, "ndcg", 10, remedy=name).value
    a, b = (value(each, "mean_cosine", remedy="none") for each in (whole, part))
    assert (a.n, b.n) == (N, 150)
    assert b.value == pytest.approx(a.value, abs=4 * (b.error or 0.0))
    again = anisoscope.embeddings(tmp_path / "rows.npy", sample=150, **names, out=tmp_path / "run")
    assert again.info["embeddings"] == part.info["embeddings"]
    (tmp_path / "pairs.csv").write_text("query,row\n" + "\n".join(f"{q},{r + 1}" for q, r in pairs))
    with pytest.raises(StoreError, match="relevant"):
        anisoscope.embeddings(tmp_path / "rows.npy", sample=150, **names, out=tmp_path / "run")
    with pytest.raises(StoreError, match="sample"):
        anisoscope.embeddings(tmp_path / "rows.npy", sample=200, **names, out=tmp_path / "run")


def test_documents_become_the_blocks_and_tables_are_accepted() -> None:
    rows, _, _ = planted()
    run = anisoscope.embeddings(pd.DataFrame(rows), documents=np.arange(N) // 20)
    assert value(run, "mean_cosine", remedy="none").error_kind == "jackknife-16-documents"
    assert run.info["unit"] == "documents"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": None}, "--relevant needs --queries"),
        ({"relevant": None}, "--queries needs --relevant"),
        ({"queries": np.ones((Q, 3))}, "same model"),
        ({"rows": np.ones((5, 3))}, "At least 21"),
        ({"rows": np.ones((50, D))}, "do not vary"),
        ({"labels": ["a"]}, "1 labels for 400 rows"),
        ({"sample": 3}, "at least 21"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(change: dict[str, Any], message: str) -> None:
    rows, queries, pairs = planted()
    options = {"rows": rows, "queries": queries, "relevant": pairs, **change}
    if len(np.asarray(options["rows"])) < N:
        options |= {"queries": None, "relevant": None}
    with pytest.raises(InputError, match=message):
        anisoscope.embeddings(options.pop("rows"), **options)
