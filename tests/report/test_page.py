"""The report page: self-contained, complete, and safe against text from a run."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from anisoscope.cli import report as commands
from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.measurement.measure_rows import measure_rows
from anisoscope.measurement.recompute import recompute
from anisoscope.records import Record
from anisoscope.report.charts import plot
from anisoscope.report.live import live_app
from anisoscope.report.page import report_page, write_report
from anisoscope.store.run import Run
from tests import report_runs as runs
from tests.damage import LONG, SHORT, damages
from tests.tangent_worlds import examined, world


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page([runs.make_run(tmp_path_factory.mktemp("report") / "exp", runs.every_shape())])


def unpacked(page: str) -> tuple[dict[str, Any], bytes]:
    text = re.search(r'id="records">([^<]+)<', page)
    assert text is not None
    return runs.unpacked(text[1])


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


def test_the_page_shows_what_was_measured_and_how(page: str) -> None:
    for text in ("anisoscope measure tiny --text book.txt", "model: revision", "data: source", "token policy", "0.1.0"):
        assert text in page
    assert "Razzhigaev 2023" in page
    assert "A formula: λ1/Σλ &lt; 1." in page


def test_the_page_contains_every_record(page: str, tmp_path: Path) -> None:
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


def test_two_runs_are_shown_in_one_report(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / name, runs.profiles(scale=s)) for name, s in (("b", 1.0), ("a", 0.5))]
    head, _ = unpacked(text := report_page(pair))
    assert head["lists"]["run"] == ["b", "a"]  # as given, and so are the colours
    [colours] = [
        layer["encoding"]["color"]["scale"]["domain"]
        for key, spec in head["outline"]["specs"].items()
        if key.startswith("kind=profile,colour=run") and "null=True" in key
        for layer in spec["layer"][:1]
    ]
    assert colours == plot(pair, "spectral_anisotropy").to_dict()["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert colours == ["b", "a"]
    assert text.index('<th scope="col">b</th>') < text.index('<th scope="col">a</th>')  # one column each, as given


def test_what_was_measured_is_folded(page: str) -> None:
    assert "<details open" not in page


def test_the_verdicts_of_a_tangent_test_stand_above_the_charts(tmp_path: Path) -> None:
    made = world(30_000)
    records = examined(made, made.local_gradients(0.1))
    text = report_page([runs.make_run(tmp_path / "tangent", records)])
    assert '<td class="wrap">tangent to its own patch</td>' in text
    assert text.index("tangent to its own patch") < text.index('class="question"') < text.index('id="explore"')


def test_a_run_of_an_earlier_version_has_a_page(tmp_path: Path) -> None:
    """Without a kind, cards, words of massive tokens, settings or a unit."""
    run = runs.make_run(tmp_path / "exp", [*runs.profiles(), *runs.curves(), *runs.heads()])
    head = json.loads((run.path / "run.json").read_text())
    removed = {"count": 300, "tokens": [{"token": 1, "text": " the"}]}
    head["info"] = {"model": {"source": "tiny"}, "removed": removed}
    (run.path / "run.json").write_text(json.dumps(head))
    page = write_report([Run.open(run.path)], tmp_path / "report.html").read_text()
    assert "Who causes it?" in page
    assert "“the”" in page
    assert "This run lists 1 of them" in page


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


def test_a_report_can_be_written_without_torch(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_report_of_150_steps_32_layers_30_metrics_and_two_policies_is_under_6_mb(tmp_path: Path) -> None:
    table = runs.big_table(steps=150, layers=32, metrics=30)
    names = [name for name in table.columns if name not in ("index", "note", "variant", "run")]
    columns = [table[name].tolist() for name in names]
    with Run.create(tmp_path / "exp", runs.info()) as run:
        run.append(Record(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))
    written = write_report([Run.open(tmp_path / "exp")], tmp_path / "report.html")
    assert written.stat().st_size < 6_000_000


HOSTILE = "</script><script>window.taken=1</script>[/red]\x1b]0;taken\x07"


def used(path: Path) -> None:
    """Everything that reads a run: tables, sentences, a page, the live page."""
    with suppress(AnisoscopeError):
        report_page([Run.open(path)])
    with suppress(AnisoscopeError), redirect_stdout(io.StringIO()):
        commands.show(path)
    with suppress(AnisoscopeError), redirect_stdout(io.StringIO()):
        commands.compare(path, path, metrics=None, sites=True, as_json=False)
    client = TestClient(live_app(str(path.parent)), base_url="http://127.0.0.1")
    assert client.get("/api/runs").status_code == 200
    assert client.get("/api/records", params={"run": path.name}).status_code in (200, 404)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


# The parts of a run's info that pages and tables read.
INFO_PATHS = (
    ("metrics",),
    ("metrics", "two_nn"),
    ("metrics", "two_nn", "low"),
    ("metrics", "two_nn", "meaning"),
    ("metrics", "two_nn", "ignores"),
    ("metrics", "two_nn", "text"),
    ("removed",),
    ("removed", "count"),
    ("removed", "tokens"),
    ("removed", "words"),
    ("model",),
    ("model", "random_weights"),
    ("model", "source"),
    ("data",),
    ("data", "d"),
    ("interrupted",),
    ("unit",),
)


def check_info(folder: Path, paths: Iterable[tuple[str, ...]], value: Any) -> None:
    path = folder / "r"
    runs.make_run(path, runs.profiles((0, 10)))
    header = json.loads((path / "run.json").read_text())
    for *outer, last in paths:
        part = header["info"]
        for name in outer:
            part = part.setdefault(name, {})
        part[last] = value
    (path / "run.json").write_text(json.dumps(header))
    used(path)
    shutil.rmtree(folder)


@pytest.mark.parametrize("value", [5, "x", [5], {"a": 5}, [HOSTILE]])
def test_any_plain_value_in_the_info_gives_a_page_or_an_error(tmp_path: Path, value: Any) -> None:
    for depth in (1, 2, 3):
        check_info(tmp_path / str(depth), [path for path in INFO_PATHS if len(path) == depth], value)


@pytest.mark.slow
@given(st.sampled_from(INFO_PATHS), json_values)
@settings(LONG, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_in_the_info_gives_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, path: tuple[str, ...], value: Any
) -> None:
    check_info(tmp_path_factory.mktemp("info"), [path], value)


extreme = st.sampled_from([0.0, -0.0, 1e-320, 1e308, -1e308, 3.5, -2.0])


wholes = st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])


sites = st.sampled_from(
    "resid.0 resid.999999999 embed final enc.final q.3.7 pattern.1 grad.resid.2 vectors vectors.constructor "
    f"in.datum['x'] in.__proto__ in.{'x' * 3000} weight.{HOSTILE}".split(" ")
)


texts = st.sampled_from(["a", HOSTILE, "__proto__", "all", "no-sink", "datum.value + 1", "two_nn", "verdict", "alert"])


records = st.builds(
    Record,
    site=sites,
    metric=texts,
    value=st.none() | extreme,
    step=wholes,
    version=wholes,
    tokens=texts,
    index=st.none() | wholes,
    variant=st.dictionaries(
        st.sampled_from(["null", "stratum", "axis", "of", "verdict", "claim", "__proto__", HOSTILE]),
        st.none() | st.booleans() | wholes | extreme | texts | st.just([1, {"a": None}]),
        max_size=2,
    ),
    error=st.none() | extreme,
    error_kind=st.none()
    | st.sampled_from(["jackknife-16-documents", "jackknife-1-rows", HOSTILE, "jackknife-" + "9" * 20]),
    null=st.none() | extreme,
    n=st.none() | wholes,
    note=st.none() | texts,
)


def check_records(folder: Path, records: list[Record]) -> None:
    runs.make_run(folder / "r", records)
    used(folder / "r")
    shutil.rmtree(folder)


@given(st.lists(records, min_size=1, max_size=6))
@settings(SHORT, max_examples=5)
def test_records_of_extreme_values_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, found: list[Record]
) -> None:
    check_records(tmp_path_factory.mktemp("extreme"), found)


@pytest.mark.slow
@given(st.lists(records, min_size=1, max_size=12))
@settings(LONG, max_examples=100)
def test_many_records_of_extreme_values_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, found: list[Record]
) -> None:
    check_records(tmp_path_factory.mktemp("extreme"), found)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with statistics, as `measure --out` leaves it."""
    path = tmp_path_factory.mktemp("measured") / "r"
    rows = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    measure_rows(rows, ["mean_cosine", "isoscore", "two_nn"], out=path, keep_blocks=True)
    return path


def check_damage(folder: Path, measured: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = folder / "r"
    shutil.copytree(measured, path)
    [file] = [path / name] if "/" not in name else sorted(path.glob(name))[:1]
    file.write_bytes(damage(file.read_bytes()))
    if file.suffix == ".safetensors":
        with suppress(AnisoscopeError):
            recompute(path, ["participation_ratio"])
    else:
        used(path)
    shutil.rmtree(folder)


FILES = ("run.json", "records.jsonl", "replicates.jsonl", "stats/*/*.safetensors")


@pytest.mark.parametrize("name", FILES)
@given(damages)
@settings(SHORT, max_examples=3)
def test_damaged_files_of_a_run_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, measured: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    check_damage(tmp_path_factory.mktemp("damage"), measured, name, damage)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@given(damages)
@settings(LONG, max_examples=100)
def test_much_damage_to_the_files_of_a_run_gives_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, measured: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    check_damage(tmp_path_factory.mktemp("damage"), measured, name, damage)


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    """An untrusted folder may contain a report.html that is a link to a file of the user."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    run = runs.make_run(tmp_path / "r", runs.profiles())
    os.symlink(mine, run.path / "report.html")
    write_report([run], run.path / "report.html")
    assert mine.read_text() == "precious"
    assert not (run.path / "report.html").is_symlink()
