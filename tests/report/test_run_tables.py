"""Tables of all numbers of a run: complete at 80 columns, one row per stream, no markup from data."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from anisoscope.records import Record
from anisoscope.report.cells import number
from anisoscope.report.run_tables import layers_table
from anisoscope.report.terminal import clouds_table, metric_card, metrics_table, sentences_table

LONG = "spectral_anisotropy_uncentred"
POLICIES = ("all", "no-sink", "generated", "generated no-sink")


def printed(what: RenderableType, width: int = 80) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(what)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    return text


def layers(metric: str = LONG, count: int = 30, **more: Any) -> list[Record]:
    sites = ["embed", *(f"resid.{i}" for i in range(count)), "final"]
    return [
        Record(site, metric, 0.012345 + 0.0101 * place, error=0.0012 + place / 1e4, null=0.0033, **more)
        for place, site in enumerate(sites)
    ]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_number_error_and_site_is_whole_at_any_width(width: int) -> None:
    records = [r for p in POLICIES for r in layers(tokens=p, variant={"neighbours": "other documents", "k": 32})]
    text = printed(layers_table(records, {}, "a model"), width)
    first, *_, last = layers()
    for whole in (number(first.value, 3), f"±{number(first.error, 2)}", number(last.value, 3), "final"):
        assert text.split().count(whole) >= len(POLICIES), whole
    assert text.count("generated") == 2
    for line in ("neighbours=other", "documents", "k=32"):
        assert line in text


def test_a_wide_terminal_has_one_bar_per_site_and_one_line_per_row() -> None:
    text = printed(layers_table(layers(), {}, "a model"), 120)
    (line,) = [line for line in text.splitlines() if line.startswith(LONG)]
    assert sum(character in "▁▂▃▄▅▆▇█" for character in line) == 32


def test_the_highest_value_has_its_site() -> None:
    records = [Record(f"resid.{i}", "isoscore", v) for i, v in enumerate((0.1, 0.7, 0.2))]
    assert "0.700 resid.1" in printed(layers_table(records, {}, ""), 120)


def test_streams_are_tables_of_their_own_with_a_name() -> None:
    records = [Record(f"resid.{i}", "isoscore", 0.1 + i) for i in range(3)]
    records += [Record(f"grad.resid.{i}", "isoscore", 0.5 + i) for i in range(3)]
    text = printed(layers_table(records, {}, "model"))
    assert text.index("Residual stream (resid)") < text.index("2.10") < text.index("Gradients (grad.resid)")
    assert text.count("isoscore") == 2
    assert "2.50" in text[text.index("Gradients") :]


def test_queries_and_keys_are_means_over_the_heads_of_each_layer() -> None:
    records = [
        Record(f"{kind}.{layer}.{head}", "isoscore", 0.1 * layer + 0.02 * head)
        for kind in "qk"
        for layer in range(2)
        for head in range(2)
    ]
    text = printed(layers_table(records, {}, "model"))
    assert "Queries (q), mean over the heads of each layer" in text
    assert "Keys (k), mean over the heads of each layer" in text
    assert text.count("0.110 q.1") == text.count("0.110 k.1") == 1  # (0.10 + 0.12)/2


def test_sites_are_in_the_order_of_a_forward_pass() -> None:
    records = [Record(site, "isoscore", v) for site, v in (("final", 0.3), ("resid.10", 0.2), ("resid.9", 0.1))]
    row = next(line for line in printed(layers_table(records, {}, "")).splitlines() if line.startswith("isoscore"))
    assert row.split()[3] == "0.100"  # resid.9 is first
    assert row.split()[-1] == "0.300"


def test_policies_are_in_pairs() -> None:
    records = [r for tokens in ("generated no-sink", "no-sink", "all", "generated") for r in layers(tokens=tokens)]
    rows = [line.split()[1] for line in printed(layers_table(records, {}, ""), 120).splitlines() if LONG in line]
    assert rows == ["all", "no-sink", "generated", "generated"]


def test_text_from_a_run_is_never_markup() -> None:
    hostile = "[bold red]x[/] [/]"
    info = {"removed": {"count": 1, "tokens": [{"token": 1, "text": "[dim]t[/]"}]}}
    records = [
        Record("resid.0", "tokens_to_halve", None, variant={"matrix": "[dim]raw[/]"}, note=hostile),
        Record("resid.0", "isoscore", 0.5, tokens="no-sink", variant={"a": "[red]b[/]"}),
        Record("weight.input", "isoscore", 0.5, variant={"matrix": "[red]m[/]"}, note=hostile),
    ]
    text = printed(layers_table(records, info, "[bold]title[/]"), 120)
    for whole in (hostile, "matrix=[dim]raw[/]", "a=[red]b[/]", "[dim]t[/]", "[bold]title[/]"):
        assert whole in text
    said = printed(sentences_table([("isoscore", hostile)], [hostile]), 120)
    assert said.count(hostile) == 2


def test_a_reason_without_a_value_has_no_markup() -> None:
    records = [Record("resid.0", "tokens_to_halve", None, variant={"matrix": "raw"}, note="there is no excess")]
    text = printed(layers_table(records, {}, ""), 120)
    assert "No value of tokens_to_halve (matrix=raw, all): there is no excess" in text
    assert "dim" not in text


def test_weights_say_nothing_about_tokens_that_they_do_not_have() -> None:
    records = [
        Record("weight.input", "isoscore", value, variant={"matrix": name}, n=100)
        for name, value in (("raw", 0.5), ("centred", 0.5), ("trained", 0.25), ("trained, centred", 0.25))
    ]
    records += [Record("weight.input", "two_nn", 7.0, variant={"matrix": m}, n=100) for m in ("raw", "centred")]
    text = printed(layers_table(records, {"removed": {"count": 0, "tokens": []}}, "model"))
    assert "no-sink" not in text
    assert text.count("two_nn") == 1
    assert "matrix=raw / centred" in text
    assert "matrix=trained: only rows that training can have changed" in text
    assert "highest" not in text
    assert "curve" not in text


def test_vectors_have_one_column_of_values_and_notes_below() -> None:
    records = [
        Record("vectors", "massive_tokens", 3.0, n=200),
        Record("vectors", "two_nn", 7.125, error=0.25, null=None, n=100, note="2 duplicate rows removed"),
        *(Record("vectors", "spectrum", 0.5 / k, index=k, null=0.1, n=200) for k in range(1, 65)),
    ]
    text = printed(layers_table(records, {}, "v.npy"))
    assert "7.125 ±0.25" in text
    assert "0.5000 … 0.007812" in text
    assert "index 1 … 64" in text
    assert "two_nn: 2 duplicate rows removed" in text
    assert "n: 200 rows, for some metrics 100" in text
    assert "a token is a row" in text


def test_the_catalogue_is_whole_at_80_columns() -> None:
    card = {
        "name": "mean_cosine_across_documents",
        "family": "isotropy",
        "meaning": "Average cosine between two rows of different documents.",
        "text": "Average cosine.",
        "low": -1,
        "high": 1,
        "ignores": ["permutation", "rotation", "row-scale", "scale"],
        "needs": ["Moments"],
        "paper": "ethayarajh2019",
        "version": 1,
    }
    flat = " ".join(printed(metrics_table([card])).split())
    for cell in (card["name"], card["family"], "-1 … 1 · ignores rotation, row-scale, scale · ethayarajh2019"):
        assert str(cell) in flat
    assert "different documents." in flat
    assert "[x]" in printed(metric_card({**card, "paper": "[x]"}))


def test_the_table_of_known_clouds_is_whole_at_80_columns() -> None:
    names = ["mean_cosine", "spectral_anisotropy", "isoscore", "effective_rank", "two_nn", "gride"]
    text = printed(clouds_table({"sphere": [Record("vectors", name, 0.1234) for name in names]}, names))
    assert text.count("0.1234") == len(names)
