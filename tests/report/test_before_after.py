"""The table of `transform`: paired errors, polarity in words, nulls of the transformed rows, and the warning."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from anisoscope.metrics import catalogue
from anisoscope.records import Record, Replicates
from anisoscope.report.before_after import Change, before_after_table, change
from anisoscope.stats.inference import jackknife

CARDS = {name: metric.card() for name, metric in catalogue().items()}


def record(metric: str, value: float | None, **facts: object) -> Record:
    return Record("vectors", metric, value, **facts)  # type: ignore[arg-type]


def printed(changes: list[Change], width: int = 80, notes: tuple[str, ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(before_after_table(changes, "v.npy: centre", CARDS, notes=notes))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_both_sides_share_cancels_in_the_error_of_the_change() -> None:
    without = Replicates([0.1, 0.2, 0.3, 0.2], [5, 6, 7, 8])
    shifted = Replicates([0.4, 0.5, 0.6, 0.5], [5, 6, 7, 8])
    same = change(record("isoscore", 0.2), record("isoscore", 0.5), without, shifted)
    assert same.value == pytest.approx(0.3)
    assert same.error == pytest.approx(0, abs=1e-12)
    assert same.clear
    other = Replicates([0.5, 0.4, 0.6, 0.5], [5, 6, 7, 8])
    noisy = change(record("isoscore", 0.2), record("isoscore", 0.5), without, other)
    assert noisy.error == pytest.approx(jackknife(0.3, [0.4, 0.2, 0.3, 0.3], [5, 6, 7, 8]))


def test_a_change_within_its_error_is_not_clear() -> None:
    each = change(record("isoscore", 0.2), record("isoscore", 0.21), [0.1, 0.3, 0.2, 0.2], [0.3, 0.1, 0.2, 0.24])
    assert not each.clear
    assert " *" not in printed([each]).split("change:")[0]


def test_without_replicates_or_a_value_there_is_no_error() -> None:
    assert change(record("isoscore", 0.2), record("isoscore", 0.5)).error is None
    none = change(record("isoscore", 0.2), record("isoscore", None, note="the rows do not vary"), [0.1, 0.3], ())
    assert (none.value, none.error, none.clear) == (None, None, False)
    assert "No value of isoscore: the rows do not vary" in " ".join(printed([none]).split())
    assert change(record("isoscore", 0.2), None).to_json() == [{"when": "before", **record("isoscore", 0.2).to_json()}]


def test_the_null_is_that_of_the_transformed_rows() -> None:
    each = change(record("isoscore", 0.2, null=0.111), record("isoscore", 0.5, null=0.987))
    assert "0.987" in printed([each])
    assert "0.111" not in printed([each])


def test_polarity_is_in_words_and_the_warning_is_there() -> None:
    names = ["mean_cosine", "spectral_anisotropy", "isoscore", "two_nn", "power_law_alpha"]
    text = printed([change(record(name, 0.2), record(name, 0.5)) for name in names], notes=("A note.",))
    assert "nearer 0 is more isotropic" in text
    assert "lower is more isotropic" in text
    assert "higher is more isotropic" in text
    assert "a dimension, not isotropy" in text
    assert "not a measure of isotropy" in text
    assert "A note." in text
    assert "Isotropy is not quality." in text
    assert "test retrieval on your own task" in " ".join(text.split())


def test_polarity_agrees_with_the_known_answers_of_the_metrics() -> None:
    metrics = catalogue()
    declared = {name: metric.isotropic for name, metric in metrics.items() if metric.isotropic is not None}
    assert {"isoscore", "mean_cosine", "spectral_anisotropy"} <= set(declared)
    for name, end in declared.items():
        known = {cloud: x[0] if isinstance(x, tuple) else x for cloud, x in metrics[name].knows.items()}
        narrow = [known[cloud] for cloud in ("line", "one direction", "plane") if cloud in known]
        if "sphere" in known and narrow:
            assert (end == "high") == (known["sphere"] > narrow[0]), name
        assert metrics[name].notable == ("low" if end == "high" else "high")  # follows, so it is declared once


def test_it_fits_eighty_columns() -> None:
    name, facts = "participation_ratio_unbiased", {"variant": {"of": "singular values"}, "null": 123456.789}
    wide = change(
        record(name, 123456.789, error=0.000123456, **facts), record(name, 1e-9, error=1.7e-8, **facts), [1, 2], [5, 5]
    )
    precise = change(
        record("mean_cosine", 0.038208, error=0.000017, null=0.0),
        record("mean_cosine", -3.31e-7, error=1.7e-8, null=-0.0000123),
        [0.03820, 0.03821, 0.03822],
        [1e-7, 2e-7, 3e-7],
    )
    text = printed([wide, precise])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text  # nothing is cut
    assert "123,456.78900" in text
    assert "-1.2e" not in text
    assert "−1.2e−05" in text or "−0.0000123" in text


def test_a_tiny_error_does_not_cost_the_digits_of_the_value() -> None:
    text = printed([change(record("isoscore", 0.999871, error=2e-9), record("isoscore", 0.5))])
    assert "0.999871" in text
    assert "± 2.0e−09" in text
