"""Two runs compared: paired differences and their errors against numpy, and the tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError
from anisoscope.records import Record, Replicates
from anisoscope.report.compare import compare, difference_frame, matched, refused_text
from anisoscope.report.terminal import differences_table, sites_table
from anisoscope.store.run import Run
from tests import report_runs as runs

BLOCKS = 8


def measured(path: Path, seed: int, shift: float, step: int = 0, **info: Any) -> Run:
    """A run whose replicates share most of their noise with every other of the same seed."""
    common = np.random.default_rng(seed).normal(size=BLOCKS)
    own = np.random.default_rng(round(1000 * shift)).normal(size=BLOCKS) / 100
    replicates = 5 + shift + (common + own) / 10
    error = float(np.sqrt((BLOCKS - 1) / BLOCKS * ((replicates - replicates.mean()) ** 2).sum()))
    with Run.create(path, runs.info(**info)) as run:
        record = Record("resid.1", "two_nn", 5 + shift, error=error, error_kind="jackknife-8-documents", step=step)
        run.append([record], [replicates.tolist()])
    return Run.open(path)


def test_differences_over_the_same_tokens_are_paired(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 0, 0.0), measured(tmp_path / "b", 0, 0.2)
    [found] = compare(a, b)
    ours, theirs = (np.array(next(iter(run.replicates().values()))) for run in (a, b))
    deltas = theirs - ours
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(np.sqrt((BLOCKS - 1) / BLOCKS * ((deltas - deltas.mean()) ** 2).sum()))
    assert found.paired
    assert found.clear


def test_pairing_sees_what_two_independent_errors_hide(tmp_path: Path) -> None:
    a = measured(tmp_path / "a", 0, 0.0)
    [paired] = compare(a, measured(tmp_path / "b", 0, 0.2))
    [apart] = compare(a, measured(tmp_path / "c", 0, 0.2, data={"source": "other.txt"}))
    assert not apart.paired
    assert apart.error == pytest.approx(np.hypot(apart.first.error or 0, apart.second.error or 0))
    assert paired.error is not None
    assert apart.error is not None
    assert paired.error < apart.error / 10
    assert not apart.clear


def test_another_tokenizer_is_no_pair(tmp_path: Path) -> None:
    a = measured(tmp_path / "a", 0, 0.0, model={"processor": "One"})
    b = measured(tmp_path / "b", 0, 0.2, model={"processor": "Other"})
    assert not compare(a, b)[0].paired


def test_without_a_common_step_the_last_ones_are_compared(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 0, 0.0, step=100), measured(tmp_path / "b", 0, 0.2, step=500)
    [found] = compare(a, b)
    assert (found.first.step, found.second.step) == (100, 500)
    assert found.paired


def test_runs_that_share_nothing_are_refused(tmp_path: Path) -> None:
    a = runs.make_run(tmp_path / "a", runs.profiles())
    b = runs.make_run(tmp_path / "b", [Record("vectors", "isoscore", 0.5)])
    with pytest.raises(InputError, match="share no number"):
        compare(a, b)


def test_a_metric_that_one_run_lacks_is_named(tmp_path: Path) -> None:
    a = runs.make_run(tmp_path / "a", runs.profiles())
    with pytest.raises(InputError, match="Did you mean 'two_nn"):
        compare(a, a, ["two_n"])


def test_the_tables_show_curves_differences_and_how_they_were_made(tmp_path: Path) -> None:
    a = runs.make_run(tmp_path / "a", runs.profiles(scale=1.0))
    b = runs.make_run(tmp_path / "b", runs.profiles(scale=0.5))
    found = compare(a, b)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(differences_table(found, "a and b"))
    console.print(sites_table(found, "a and b"))
    text = console.export_text()
    assert "largest difference" in text
    assert "█" in text
    assert "taken as independent" in text
    assert "resid.3" in text


def test_the_command_prints_json_that_pandas_can_read(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 0, 0.0), measured(tmp_path / "b", 0, 0.2)
    result = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--json"])
    [row] = json.loads(result.stdout)
    assert row["difference"] == pytest.approx(0.2)
    assert row["paired"] is True
    assert row["site"] == "resid.1"


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 0, 0.0), measured(tmp_path / "b", 0, 0.2)
    result = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--sites"])
    assert result.exit_code == 0
    assert "paired by blocks of the same tokens" in " ".join(result.stdout.split())


def test_compare_gives_the_error_bar_of_measure_for_blocks_of_unequal_size(tmp_path: Path) -> None:
    """A run minus one whose numbers are all 0 is the run itself, so its error bar must be that of `measure`."""
    from anisoscope.stats.inference import jackknife

    values, sizes = [0.9, 1.3, 0.7, 1.1], [100, 10, 55, 70]
    error = jackknife(1.0, values, sizes)
    for name, factor in (("zero", 0.0), ("one", 1.0)):
        with Run.create(tmp_path / name, runs.info()) as run:
            record = Record("embed", "isoscore", factor, error=factor * error, error_kind="jackknife-4-documents")
            run.append([record], [Replicates([factor * x for x in values], sizes)])
    [difference] = compare(Run.open(tmp_path / "zero"), Run.open(tmp_path / "one"))
    assert difference.paired
    assert difference.error == pytest.approx(error)
    assert difference.error != pytest.approx(jackknife(1.0, values, [1] * 4), rel=0.01)  # the sizes matter here


def model_run(path: Path, layers: int, n: int, values: float, **more: Any) -> Run:
    """A run of a model with so many layers, measured on n tokens; the facts of its metrics are in its cards."""
    facts = {"mean_cosine": "none", "isoscore": "null", "two_nn": "any"}
    cards = {name: runs.card(name, name, low=None, high=None, row_effect=effect) for name, effect in facts.items()}
    sites = ["embed", *(f"resid.{i}" for i in range(layers)), "final"]
    same: dict[str, Any] = {"n": n, "error": 0.001, "error_kind": "jackknife-8-documents"}
    records = [Record(site, "mean_cosine", values, **same) for site in sites]
    records += [Record(site, "isoscore", values, null=1 / (1 + 500 / n), **same) for site in sites]
    records += [Record(site, "two_nn", 10 * values, **same) for site in sites]
    return runs.make_run(path, records, metrics=cards, **more)


def test_models_of_different_depth_are_compared_by_relative_depth(tmp_path: Path) -> None:
    deep, shallow = model_run(tmp_path / "deep", 30, 4096, 0.5), model_run(tmp_path / "shallow", 6, 4096, 0.6)
    found = [each for each in compare(deep, shallow) if each.first.metric == "isoscore"]
    assert [(each.first.site, each.second.site) for each in found] == [
        ("embed", "embed"),
        *((f"resid.{5 * i + 4}", f"resid.{i}") for i in range(6)),
        ("final", "final"),
    ]
    assert [each.depths for each in found][1] == pytest.approx((1 / 6, 1 / 6))
    row = found[1].to_json()
    assert (row["sites"], row["depths"]) == (["resid.4", "resid.0"], pytest.approx([1 / 6, 1 / 6]))
    table = difference_frame(found)
    assert list(table[["site", "site_2"]].iloc[2]) == ["resid.9", "resid.1"]
    assert table["depth"].tolist() == pytest.approx(table["depth_2"].tolist())


def test_what_has_no_partner_is_listed(tmp_path: Path) -> None:
    deep, shallow = model_run(tmp_path / "deep", 4, 4096, 0.5), model_run(tmp_path / "shallow", 2, 4096, 0.6)
    with Run.create(deep.path, resume=True) as writer:
        writer.append([Record("resid.1", "rankme", 4.0), Record("resid.1", "isoscore", 0.4, tokens="no-sink")])
    notes = "\n".join(matched(Run.open(deep.path), shallow).notes)
    assert "matched by relative depth (the models have 4 and 2 layers)" in notes
    assert (
        "Only in deep, not in shallow: the metric rankme; the token policy no-sink; the sites resid.0, resid.2."
        in notes
    )
    assert "Only in shallow" not in notes


def test_a_variant_that_one_run_lacks_is_listed(tmp_path: Path) -> None:
    pair = [
        runs.make_run(
            tmp_path / name, [Record("embed", "isoscore", 0.5), Record("embed", "top", 0.5, variant={"k": k})]
        )
        for name, k in (("a", 1), ("b", 2))
    ]
    notes = "\n".join(matched(pair[0], pair[1]).notes)
    assert "Only in a, not in b: the metric top." in notes


def test_numbers_that_depend_on_n_are_refused_at_different_n(tmp_path: Path) -> None:
    few, many = model_run(tmp_path / "few", 2, 4096, 0.5), model_run(tmp_path / "many", 2, 65536, 0.52)
    found = {each.first.metric: each for each in compare(few, many)}
    assert found["mean_cosine"].clear
    assert found["mean_cosine"].refused is None
    for name in ("two_nn", "isoscore"):
        assert found[name].refused == "4,096 against 65,536 tokens"
        assert not found[name].clear
    text = refused_text(list(found.values()))
    assert text.startswith("2 of 3 are not comparable (4,096 against 65,536 tokens): these metrics depend on n")
    assert refused_text([found["mean_cosine"]]) == ""


def test_a_difference_beyond_what_n_can_cause_is_compared_with_an_allowance(tmp_path: Path) -> None:
    few, many = model_run(tmp_path / "few", 2, 4096, 0.5), model_run(tmp_path / "many", 2, 65536, 0.9)
    found = next(each for each in compare(few, many) if each.first.metric == "isoscore")
    assert found.refused is None
    assert found.by_rows == pytest.approx(1 / (1 + 500 / 65536) - 1 / (1 + 500 / 4096))
    assert found.clear


def test_nearly_equal_numbers_of_rows_are_compared(tmp_path: Path) -> None:
    few, many = model_run(tmp_path / "few", 2, 4000, 0.5), model_run(tmp_path / "many", 2, 4096, 0.52)
    assert all(each.refused is None for each in compare(few, many))


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    one = model_run(tmp_path / "one", 2, 4096, 0.5)
    other = model_run(
        tmp_path / "other", 2, 4096, 0.5, model={"dtype": "bfloat16"}, data={"source": "b.txt", "tokens": 65536}
    )
    [note] = matched(one, other).notes
    assert note == (
        "The runs differ in text (book.txt and b.txt), tokens (4,096 and 65,536), precision (float32 and bfloat16)."
    )


def test_the_command_prints_how_layers_were_matched_and_what_was_refused(tmp_path: Path) -> None:
    deep, shallow = model_run(tmp_path / "deep", 8, 4096, 0.5), model_run(tmp_path / "shallow", 4, 65536, 0.6)
    for option in ([], ["--sites"]):
        result = CliRunner().invoke(app, ["compare", str(deep.path), str(shallow.path), *option])
        text = " ".join(result.stdout.split())
        assert "layers matched by relative depth" in text
        assert "not comparable" in text
        assert "Only in deep, not in shallow: the sites resid.0, resid.2, resid.4, resid.6." in text
    result = CliRunner().invoke(app, ["compare", str(deep.path), str(shallow.path), "--json"])
    assert {row["refused"] for row in json.loads(result.stdout)} == {None, "4,096 against 65,536 tokens"}
    assert "Only in deep" in " ".join(result.stderr.split())
