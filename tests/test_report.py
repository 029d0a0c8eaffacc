"""The report: sentences, caveats, a page that is safe, small and whole."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report.caveats import caveats
from anisoscope.report.outline import outline_of
from anisoscope.report.packed_table import pack, rounded
from anisoscope.report.page import report_page, write_report
from anisoscope.report.sentences import layers_text, number, peak, sentences, span
from anisoscope.report.tables import by_metric, first_and_last, rows_of
from anisoscope.store.run import Run
from tests import report_runs as runs


def rows(records: list[Record]) -> dict[str, Any]:
    return {metric: rows_of(group) for metric, group in by_metric(runs.frame_of(records)).items()}


def said(metric: str, records: list[Record]) -> str:
    return "; ".join(sentences(metric, rows(records)[metric]))


# --- sentences ----------------------------------------------------------------------------------------------------


def profile(values: list[float], without: list[float] | None = None) -> list[Record]:
    policies = {"all": values} | ({"no-sink": without} if without else {})
    return [
        Record(f"resid.{i}", "spectral_anisotropy", v, tokens=tokens)
        for tokens, curve in policies.items()
        for i, v in enumerate(curve)
    ]


def test_a_bell_is_told_by_its_layers_and_what_is_left_without_sinks() -> None:
    text = said("spectral_anisotropy", profile([0.1, 0.97, 0.97, 0.1], [0.1, 0.12, 0.12, 0.1]))
    assert text == (
        "layers 1–2: the top direction has 97 % of the variance; without first and massive tokens 12 %; elsewhere 10 %"
    )


def test_a_flat_curve_is_told_as_one_stretch() -> None:
    assert said("spectral_anisotropy", profile([0.5, 0.51, 0.52])) == (
        "layers 0–2: the top direction has 50–52 % of the variance"
    )


def test_what_sinks_do_not_change_is_not_told() -> None:
    assert "without first" not in said("spectral_anisotropy", profile([0.5, 0.51], [0.49, 0.5]))


def test_training_is_told_by_the_layer_that_moved_most() -> None:
    text = said("two_nn", [r for r in runs.profiles((0, 1000)) if r.metric == "two_nn"])
    assert "from step 0 to 1,000 it changed most at final, where it rose from 9.27 to 15.0" in text


def test_a_metric_without_a_phrase_is_told_by_its_name() -> None:
    assert said("my_metric", [Record("resid.0", "my_metric", 2.0)]) == "layer 0: my metric is 2"


def test_a_curve_by_index_of_no_known_meaning_is_not_told() -> None:
    assert said("spectrum", [Record("resid.0", "spectrum", 0.5, index=j) for j in (1, 2, 4)]) == ""


def test_gradient_energy_is_told_at_the_headline_rank_beside_its_null() -> None:
    text = said("gradient_energy", [r for r in runs.gradients((0,)) if r.metric == "gradient_energy"])
    assert "(null value 25 %)" in text
    assert "(at index 32)" in text


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [(0.97, True, "97 %"), (0.0734, True, "7.3 %"), (0.0004, True, "0.04 %"), (1234.5, False, "1,234"),
     (0.073, False, "0.073"), (1e-9, False, "0"), (-0.5, False, "-0.50")],
)  # fmt: skip
def test_numbers_are_said_with_few_digits(value: float, percent: bool, text: str) -> None:
    assert number(value, percent) == text


def test_a_span_of_equal_numbers_is_one() -> None:
    assert span([0.5, 0.5001]) == "0.50"
    assert span([0.1, 0.2], percent=True) == "10–20 %"


def test_the_peak_is_the_stretch_above_half_of_the_rise() -> None:
    assert peak({0: 0.0, 1: 0.6, 2: 1.0, 3: 0.4, 4: 0.9}) == ([1, 2], [0, 3, 4])


def test_layers_are_named_at_both_ends() -> None:
    assert layers_text([-1.0, 0.0, 1.0], 2.0) == "embed to layer 1"
    assert layers_text([2.0], 2.0) == "final"


# --- caveats ------------------------------------------------------------------------------------------------------


def told(records: list[Record], **info: Any) -> str:
    return "\n".join(caveats(rows(records), info))


def test_a_sample_too_small_for_its_dimension_is_told() -> None:
    records = [Record("vectors", "isoscore", 0.3, n=384, null=0.33)]
    assert "would have an IsoScore of 0.33, not 1" in told(records, data={"d": 768})
    assert "few for" not in told([Record("vectors", "isoscore", 0.9, n=100_000, null=0.99)], data={"d": 768})


def test_the_width_is_read_off_a_spectrum_where_nothing_else_says_it() -> None:
    records = [Record("vectors", "spectral_anisotropy", 0.3, n=500)]
    records += [Record("vectors", "spectrum", 0.1, index=j) for j in (1, 2, 100)]
    assert "500 tokens are few for 100 dimensions" in told(records)


def test_duplicates_are_told_once_for_all_sites() -> None:
    notes = [Record(f"resid.{i}", "two_nn", 5.0, error=0.1, note=f"{i + 1} duplicate rows removed") for i in range(3)]
    assert told(notes) == "two_nn: 1 duplicate rows removed (at 3 sites, first one quoted)."


def test_one_massive_token_is_told() -> None:
    assert "A few tokens dominate" in told([Record("resid.1", "tokens_to_halve", 1 / 4096, n=4096)])
    assert "1 massive token ('x') is left out" in told([], removed={"count": 1, "tokens": [{"text": "x"}]})


def test_a_curve_drawn_by_sinks_is_told() -> None:
    assert "loses up to 85 % of the variance" in told(profile([0.1, 0.95], [0.1, 0.1]))


def test_a_saturated_dimension_is_told() -> None:
    assert "underestimated" in told([Record("resid.0", "two_nn", 32.0, error=1.0)])


def test_a_metric_without_a_value_is_told_with_its_reason() -> None:
    assert "No value: tyler_share (too few rows)." in told(
        [Record("vectors", "tyler_share", None, note="too few rows")]
    )


def test_interruption_random_weights_and_alerts_are_told() -> None:
    alert = Record("resid.3", "alert", 0.99, step=40, variant={"rule": "collapse"}, note="mean cosine over 0.98")
    text = told([alert], interrupted=True, model={"random_weights": ["pooler"]})
    assert "interrupted" in text
    assert "pooler" in text
    assert "Alert at step 40, resid.3: mean cosine over 0.98." in text


def test_sound_runs_have_no_caveats() -> None:
    assert told([Record("resid.0", "isoscore", 0.9, error=0.01, n=100_000, null=0.99)], data={"d": 64}) == ""


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page([runs.make_run(tmp_path_factory.mktemp("report") / "exp", runs.every_shape())])


def unpacked(page: str) -> tuple[dict[str, Any], bytes]:
    """What the page's own script unpacks, here in Python."""
    text = re.search(r'id="records">([^<]+)<', page)
    assert text is not None
    body = zlib.decompress(base64.b64decode(text[1]))
    length = int.from_bytes(body[:4], "little")
    return json.loads(body[4 : 4 + length]), body[4 + length :]


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    own = page.split("<script>")[0]
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", own)
    assert "default-src 'none'" in own


def test_only_the_scripts_of_the_page_may_run(page: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1])  # type: ignore[index]
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_the_page_says_what_was_measured_and_how(page: str) -> None:
    for text in ("anisoscope measure tiny --text book.txt", "model: revision", "data: source", "token policy", "0.1.0"):
        assert text in page
    assert "Razzhigaev 2023" in page
    assert "A formula: λ1/Σλ &lt; 1." in page


def test_the_page_holds_every_record(page: str, tmp_path: Path) -> None:
    head, body = unpacked(page)
    run = runs.make_run(tmp_path / "exp", runs.every_shape())
    frame = run.frame()
    assert head["rows"] == len(frame)
    sizes = {name: int(kind[1]) * head["rows"] for name, kind in head["columns"]}
    offset = sum(size for name, size in list(sizes.items())[: list(sizes).index("value")])
    planes = np.frombuffer(body[offset : offset + sizes["value"]], np.uint8).reshape(4, -1)
    values = np.ascontiguousarray(planes.T).view("<f4")[:, 0]
    assert np.allclose(np.sort(values), np.sort(frame["value"].to_numpy(np.float32)), rtol=1e-7)


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    hostile = runs.HOSTILE.replace("/", "")  # a run's name is no path
    variant = {"of": "</script><script>alert(1)</script>"}
    records = [
        Record("resid.0", "two_nn", 5.0, variant=variant, note="<img src=x onerror=alert(1)>; more"),
        Record("resid.1", "<b>metric</b>", 0.5, tokens='"><script>'),
        *runs.verdicts(),
    ]
    run = runs.make_run(tmp_path / "exp", records, name=hostile, model={"source": "<script>alert(1)</script>"})
    text = report_page([run])
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert len(re.findall(r"<script", text.split("<script>")[0])) == 1  # the records' own
    assert "<script" not in markup
    assert "<img" not in markup
    assert markupsafe.escape(hostile) in markup


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / name, runs.profiles(scale=s)) for name, s in (("a", 1.0), ("b", 0.5))]
    head, _ = unpacked(text := report_page(pair))
    assert head["lists"]["run"] == ["a", "b"]
    assert "<h3>a</h3>" in text
    assert "<h3>b</h3>" in text


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "empty", [])
    with pytest.raises(InputError, match="has no records yet"):
        report_page([run])


def test_a_report_needs_a_folder_and_an_html_name(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles())
    with pytest.raises(InputError, match=r"must end in \.html"):
        write_report([run], tmp_path / "report.pdf")
    with pytest.raises(InputError, match="create it first"):
        write_report([run], tmp_path / "none" / "report.html")


def test_a_report_renders_where_torch_is_not_installed(tmp_path: Path) -> None:
    runs.make_run(tmp_path / "exp", runs.profiles())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from anisoscope.store.run import Run\n"
        "from anisoscope.report.page import write_report\n"
        "from anisoscope.report import live, compare, terminal\n"
        f"run = Run.open({str(tmp_path / 'exp')!r})\n"
        "write_report([run], run.path / 'report.html'); run.plot('two_nn')\n"
        "assert not any(name.startswith('anisoscope.metrics') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (tmp_path / "exp" / "report.html").stat().st_size > 500_000


def big_table(steps: int, layers: int, metrics: int) -> pd.DataFrame:
    """Records without any pattern to compress: the worst case."""
    rng = np.random.default_rng(0)
    n = steps * layers * metrics * 2
    return pd.DataFrame(
        {
            "run": "exp",
            "step": np.repeat(np.arange(steps) ** 2, layers * metrics * 2),
            "site": np.tile(np.repeat([f"resid.{i}" for i in range(layers)], metrics * 2), steps),
            "metric": np.tile(np.repeat([f"metric_{i}" for i in range(metrics)], 2), steps * layers),
            "version": 1,
            "tokens": np.tile(["all", "no-sink"], steps * layers * metrics),
            "index": pd.array([None] * n, dtype="Int64"),
            "variant": "{}",
            "value": rng.random(n),
            "error": rng.random(n) / 10,
            "error_kind": "jackknife-16-documents",
            "null": rng.random(n) / 100,
            "n": 8192,
            "note": None,
        }
    )


def test_records_take_little_room() -> None:
    table = big_table(steps=30, layers=16, metrics=15)
    assert len(pack(table, outline_of(table, {}))) / len(table) < 11  # bytes a record, as text


@pytest.mark.slow
def test_a_report_of_150_steps_32_layers_30_metrics_and_two_policies_is_under_6_mb(tmp_path: Path) -> None:
    table = big_table(steps=150, layers=32, metrics=30)
    names = [name for name in table.columns if name not in ("index", "note", "variant", "run")]
    columns = [table[name].tolist() for name in names]
    with Run.create(tmp_path / "exp", runs.info()) as run:
        run.append(Record(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))
    written = write_report([Run.open(tmp_path / "exp")], tmp_path / "report.html")
    assert written.stat().st_size < 6_000_000


def test_rounding_keeps_the_digits_that_are_asked_for() -> None:
    values = np.array([1 / 3, -2e-5, 0.0, np.nan, 3e30], "<f4")
    found = rounded(values, 12)
    assert np.isnan(found[3])
    assert np.allclose(found[[0, 1, 2, 4]], values[[0, 1, 2, 4]], rtol=2**-13)
    assert rounded(values, 23) is values


def test_only_the_ends_of_a_training_are_read_for_the_sentences() -> None:
    table = runs.frame_of(runs.profiles((0, 1, 10)))
    assert set(first_and_last(table)["step"]) == {0, 10}


# --- the commands -------------------------------------------------------------------------------------------------


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_the_report_goes_into_the_run(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles())
    assert call("report", str(run.path)).exit_code == 0
    assert (run.path / "report.html").exists()
    assert len(list(Run.open(run.path).records())) == len(runs.profiles())  # the run itself stays as it was


def test_show_prints_curves_sentences_and_caveats(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles((0, 1000)))
    printed = " ".join(call("show", str(run.path)).stdout.split())
    assert "▁" in printed
    assert "the top direction has 84 % of the variance" in printed
    assert "Caveats" in printed


def test_a_figure_of_two_runs_with_a_pick(tmp_path: Path) -> None:
    for name in ("a", "b"):
        runs.make_run(tmp_path / name, runs.profiles((0, 10)))
    target = tmp_path / "fig.svg"
    words = ("figure", str(tmp_path / "a"), str(tmp_path / "b"), "--metric", "two_nn", "--save", str(target))
    assert call(*words, "--pick", "step=0", "--kind", "profile").exit_code == 0
    assert "step 0" in target.read_text()


def test_a_pick_without_a_value_is_explained(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles())
    result = call("figure", str(run.path), "--metric", "two_nn", "--save", str(tmp_path / "f.svg"), "--pick", "step")
    assert isinstance(result.exception, InputError)
    assert "write field=value" in str(result.exception)
