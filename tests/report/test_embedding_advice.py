"""The sentence of advice follows from the records, and only from clear changes."""

from __future__ import annotations

from anisoscope.records import Record
from anisoscope.report.embedding_advice import TEST_IT, advice, clear_beyond, verdicts


def record(metric: str, value: float, remedy: str, **more: object) -> Record:
    return Record("vectors", metric, value, variant={"remedy": remedy}, **more)  # type: ignore[arg-type]


def change(of: str, value: float, error: float, remedy: str, index: int | None = 10) -> Record:
    variant = {"of": of, "remedy": remedy}
    kind = "jackknife-400-queries"
    return Record("vectors", "change", value, index=index, variant=variant, error=error, error_kind=kind)


def judged(gains: dict[str, tuple[float, float]]) -> list[Record]:
    out = [record("uniformity", -1.0, "none"), record("ndcg", 0.6, "none", index=10)]
    for name, (gain, error) in gains.items():
        out += [record("uniformity", -2.0, name), record("ndcg", 0.6 + gain, name, index=10)]
        out.append(change("ndcg", gain, error, name))
    return out


def test_the_best_clear_gain_wins_and_harm_is_named() -> None:
    records = judged({"centre": (-0.05, 0.01), "whiten": (0.04, 0.01), "as stored": (0.02, 0.002)})
    said = advice(records)
    assert said.startswith("Use 'whiten': it raises nDCG@10 from 0.600 to 0.640 (+0.040 ± 0.010)")
    assert said.endswith("'centre' clearly lowers it.")


def test_unclear_gains_leave_the_rows_as_they_are() -> None:
    assert advice(judged({"centre": (0.01, 0.01), "whiten": (-0.1, 0.2)})).startswith("Keep the rows as they are")


def test_several_remedies_need_larger_changes() -> None:
    one = change("ndcg", 0.021, 0.01, "centre")
    assert (clear_beyond(one, 1) or 1.0) < 0.021 < (clear_beyond(one, 4) or 0.0)
    assert verdicts(judged({"centre": (0.021, 0.01)}), "ndcg", 10)[0].clear
    assert not verdicts(judged({"centre": (0.021, 0.01), "a": (0, 1), "b": (0, 1)}), "ndcg", 10)[0].clear
    assert clear_beyond(Record("vectors", "change", 0.1)) is None


def test_without_queries_nothing_is_recommended() -> None:
    cone = [
        *(record("uniformity", -1.0, name) for name in ("none", "centre")),
        *(record("mean_cosine", value, name) for name, value in (("none", 0.8), ("centre", -0.001))),
        *(record("kept_neighbours", value, name) for name, value in (("none", 1.0), ("centre", 0.9))),
    ]
    said = advice(cone)
    assert "common direction" in said
    assert "90 %" in said
    assert "--queries" in said
    assert advice([]) == TEST_IT
