"""Which part of the rows a chart shows first, and what else it offers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from anisoscope.records import Record
from anisoscope.report.picks import Pick, first_variant, pick_rows
from anisoscope.report.shapes import KINDS, colours_of, fitting_kinds
from anisoscope.report.tables import Row, by_metric, rows_of
from tests import report_runs as runs


def picked(table: pd.DataFrame, kind: str, colour: str | None = None) -> tuple[dict[str, Pick], list[Row]]:
    part, _ = fitting_kinds(table)[kind]
    picks, rows = pick_rows(rows_of(part), kind, colour, first_variant(part, {}))
    return {pick.field: pick for pick in picks}, rows


def test_every_field_that_varies_is_an_axis_a_colour_or_picked() -> None:
    for metric, table in by_metric(runs.frame_of(runs.every_shape())).items():
        for kind, (_, shape) in fitting_kinds(table).items():
            for colour in colours_of(kind, shape) or (None,):
                picks, rows = picked(table, kind, colour)
                drawn = {*KINDS[kind].axes, colour} | ({"tokens"} if KINDS[kind].dash else set())
                drawn |= {"site"} if drawn & {"layer", "head"} else set()
                for field in set(shape.values) - drawn:
                    assert len({row.get(field) for row in rows}) == 1, (metric, kind, colour, field, picks)


def test_a_field_offers_only_what_occurs_with_the_picks_before_it() -> None:
    """Embedding gradients have no layer, and only hidden gradients a second proxy: neither leads to an empty chart."""
    records = [
        Record(site, "m", 0.5, variant={"gradient": gradient, "proxy": proxy}, index=k)
        for site, gradient, proxies in (
            ("grad.weight.table", "embedding", ("pca",)),
            *((f"grad.resid.{i}", "hidden", ("pca", "svd")) for i in range(3)),
        )
        for proxy in proxies
        for k in (1, 2, 4)
    ]
    table = runs.frame_of(records)
    picks, rows = picked(table, "profile", "v_proxy")
    assert "v_gradient" not in picks  # over layers there are hidden gradients only
    assert {row["stream"] for row in rows} == {"grad.resid"}
    picks, _ = picked(table, "curve", "layer")
    assert picks["v_proxy"].values == ("pca", "svd")
    picks, rows = picked(table, "curve", "v_proxy")
    assert picks["v_gradient"].value == "embedding"  # the first record's, as in sentences
    assert {row["site"] for row in rows} == {"grad.weight.table"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_rule_that_counts_nothing_is_not_shown_first(order: int) -> None:
    rules = [("entry", 0.0), ("norm", 37.0)][::order]
    records = [Record(f"resid.{i}", "m", value, variant={"rule": rule}) for rule, value in rules for i in range(3)]
    picks, _ = picked(runs.frame_of(records), "profile")
    assert picks["v_rule"].value == "norm"


def test_the_first_layer_shown_is_the_one_with_the_largest_value() -> None:
    table = runs.frame_of([r for r in runs.curves() if r.metric == "removal_curve"])
    picks, rows = picked(table, "curve")
    top = max(rows_of(table), key=lambda row: row["value"])
    assert picks["layer"].value == top["layer"]
    assert {row["site"] for row in rows} == {top["site"]}


def test_the_variant_shown_first_is_that_of_the_first_record() -> None:
    variants: list[dict[str, Any]] = [{"of": "singular values"}, {"of": "eigenvalues"}]
    table = runs.frame_of([Record(f"resid.{i}", "effective_rank", 3.0, variant=v) for i in range(3) for v in variants])
    assert first_variant(table, {}) == {"v_of": "singular values"}
    assert first_variant(table, {"headline": {"of": "eigenvalues"}}) == {"v_of": "eigenvalues"}  # as declared
    assert picked(table, "profile")[0]["v_of"].value == "singular values"


def test_the_residual_stream_is_shown_first_and_never_mixed_with_gradients() -> None:
    table = runs.frame_of(
        [Record(f"{stream}.{i}", "m", 1.0 + i) for stream in ("grad.resid", "resid") for i in range(3)]
    )
    picks, rows = picked(table, "profile")
    assert picks["stream"].value == "resid"
    assert {row["stream"] for row in rows} == {"resid"}


def test_of_several_runs_a_map_shows_the_first_given() -> None:
    frames = [runs.frame_of(runs.heads()).assign(run=name) for name in ("decoder", "causal")]
    table = pd.concat(frames, ignore_index=True)
    picks, _ = picked(by_metric(table)["qk_cosine"], "heads")
    assert picks["run"].values == ("decoder", "causal")
    assert picks["run"].value == "decoder"


def test_the_last_step_that_every_run_has_is_shown_first() -> None:
    steps = [("a", 0), ("a", 5), ("a", 9), ("b", 0), ("b", 5)]
    records = [Record(f"resid.{i}", "m", 1.0, run=run, step=step) for run, step in steps for i in range(3)]
    picks, _ = picked(runs.frame_of(records), "profile", "run")
    assert picks["step"].value == 5


def test_rows_without_an_index_are_not_mixed_with_rows_that_have_one() -> None:
    records = [Record(f"resid.{i}", "m", 1.0, index=k) for i in range(3) for k in (None, 8)]
    picks, rows = picked(runs.frame_of(records), "profile")
    assert picks["index"].values == ("–", 8)
    assert {row["index"] for row in rows} == {8}
