"""The live page: what it serves, to whom, and how it follows a growing run."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import socket
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report import live
from anisoscope.report.live import _follow, is_loopback, live_app, serve
from anisoscope.report.page import report_page
from anisoscope.report.run_index import RunIndex
from anisoscope.store.run import Run
from benchmarks.long import long_run
from tests import report_runs as runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    runs.make_run(root / "a", runs.profiles())
    runs.make_run(root / "sweep" / "b", runs.profiles(scale=0.5))
    runs.make_run(tmp_path / "secret", runs.profiles())
    return root


def client(root: Path, **options: Any) -> TestClient:
    return TestClient(live_app(str(root), **options), base_url="http://127.0.0.1:8733")


def test_the_list_has_every_run_in_the_folder(folder: Path) -> None:
    listed = client(folder).get("/api/runs").json()
    assert {run["id"] for run in listed} == {"a", "sweep/b"}
    assert all(run["model"] == "tiny" for run in listed)


def test_a_single_run_can_be_served(folder: Path) -> None:
    assert list(RunIndex(folder / "a").ids()) == ["."]
    assert client(folder / "a").get("/api/records?run=.").status_code == 200


def test_the_records_of_the_chosen_runs_are_sent(folder: Path) -> None:
    answer = client(folder).get("/api/records", params={"run": ["a", "sweep/b"]}).json()
    body = zlib.decompress(base64.b64decode(answer["packed"]))
    head = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])
    assert head["rows"] == 2 * len(runs.profiles())
    assert head["lists"]["run"] == ["a", "b"]
    assert answer["positions"] == [(folder / name / "records.jsonl").stat().st_size for name in ("a", "sweep/b")]


@pytest.mark.parametrize(
    "name", ["../secret", "a/../../secret", "/etc", "..", "a/", "", "%2e%2e/secret", "..\\secret", "a\0", "sweep"]
)
def test_paths_outside_the_folder_are_refused(folder: Path, name: str) -> None:
    for path in ("/api/records", "/report", "/api/events"):
        answer = client(folder).get(path, params={"run": name, "position": "0"})
        assert answer.status_code == 404
        assert "no run" in answer.text


def test_a_link_that_leads_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path / "secret", folder / "link")
    assert "link" not in RunIndex(folder).ids()
    assert client(folder).get("/api/records?run=link").status_code == 404


@pytest.mark.parametrize("name", ["../page.py", "..%2fpage.py", "report.html", "%2e%2e"])
def test_only_files_of_the_page_are_served(folder: Path, name: str) -> None:
    assert client(folder).get(f"/assets/{name}").status_code == 404


def test_the_page_may_run_only_scripts_of_this_server(folder: Path) -> None:
    answer = client(folder).get("/")
    assert answer.status_code == 200
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert "unsafe-eval" not in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text
    for name in ("page.js", "page.css"):
        assert client(folder).get(f"/assets/{name}").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8733", 200), ("localhost", 200), ("[::1]:8733", 200),
        ("evil.example", 400), ("127.0.0.1.evil.example", 400),
    ],
)  # fmt: skip
def test_a_request_to_another_host_name_is_refused(folder: Path, host: str, status: int) -> None:
    assert client(folder).get("/api/runs", headers={"host": host}).status_code == status


def test_on_another_address_the_page_needs_its_token(folder: Path) -> None:
    outside = TestClient(live_app(str(folder), token="sesame"), base_url="http://10.0.0.5", follow_redirects=False)
    assert outside.get("/api/runs").status_code == 401
    assert outside.get("/?token=guess").status_code == 401
    assert outside.get("/api/runs", headers={"cookie": "anisoscope_token=guess"}).status_code == 401
    assert "printed" in outside.get("/").text


def test_the_token_becomes_a_cookie_and_is_removed_from_the_address(folder: Path) -> None:
    outside = TestClient(live_app(str(folder), token="sesame"), base_url="http://10.0.0.5", follow_redirects=False)
    answer = outside.get("/report?run=a&token=sesame")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/report?run=a"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert outside.get("/api/runs").status_code == 200  # the client keeps the cookie


def test_the_redirect_after_a_token_stays_on_this_host(folder: Path) -> None:
    outside = TestClient(live_app(str(folder), token="sesame"), base_url="http://10.0.0.5", follow_redirects=False)
    location = outside.get("http://10.0.0.5//evil.example/?token=sesame").headers["location"]
    assert location.startswith("/")
    assert not location.startswith("//")


def test_events_need_one_position_per_run(folder: Path) -> None:
    answer = client(folder).get("/api/events?run=a")
    assert answer.status_code == 404
    assert "one position per run" in answer.text


def followed(run: Run, position: int, change: Any) -> dict[str, Any]:
    """The first event after a change to a run that is being followed."""

    async def first() -> dict[str, Any]:
        stream = _follow([run], [position])
        assert await anext(stream) == "retry: 1000\n\n"
        change()
        event = await asyncio.wait_for(anext(stream), 10)
        await stream.aclose()  # type: ignore[attr-defined]
        found: dict[str, Any] = json.loads(event.removeprefix("data: "))
        return found

    return asyncio.run(first())


def appended(path: Path, records: list[Record]) -> None:
    with Run.create(path, resume=True) as run:
        run.append(records)


def test_an_appended_record_arrives_as_a_row(folder: Path) -> None:
    run = Run.open(folder / "a")
    _, end = run.since(0)
    record = Record("final", "two_nn", 9.5, step=7, error=0.5, error_kind="jackknife-16-documents")
    event = followed(run, end, lambda: appended(run.path, [record]))
    [row] = event["rows"]
    assert (row["metric"], row["value"], row["step"], row["run"]) == ("two_nn", 9.5, 7, "a")
    assert row["behind"]  # the page adds the depth that it knows
    assert row["high"] == pytest.approx(9.5 + 2.131 * 0.5, rel=1e-3)


def test_a_rewound_run_is_read_whole(folder: Path) -> None:
    run = Run.open(folder / "a")
    _, end = run.since(0)

    def rewind() -> None:
        with Run.create(run.path, resume=True) as writer:
            writer.rewind(0)

    assert followed(run, end, rewind) == {"again": True}


def test_half_a_line_is_not_sent(folder: Path) -> None:
    run = Run.open(folder / "a")
    _, end = run.since(0)
    line = json.dumps(Record("final", "two_nn", 1.5, step=3, run="a").to_json())
    with (run.path / "records.jsonl").open("a") as file:
        file.write(line[:40])
    frame, still = run.since(end)
    assert still == end
    assert frame is not None
    assert len(frame) == 0
    with (run.path / "records.jsonl").open("a") as file:
        file.write(line[40:] + "\n")
    frame, after = run.since(end)
    assert frame is not None
    assert frame["value"].tolist() == [1.5]
    assert after > end


def test_since_the_beginning_is_the_whole_run(folder: Path) -> None:
    run = Run.open(folder / "a")
    frame, _ = run.since()
    assert frame is not None
    assert frame.equals(run.table())


def test_a_run_that_was_started_again_is_read_whole(folder: Path) -> None:
    run = Run.open(folder / "a")
    assert run.since(10**9) == (None, 0)


def test_a_damaged_run_does_not_hide_the_others(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    assert {run["id"] for run in client(folder).get("/api/runs").json()} == {"a", "broken", "sweep/b"}
    assert client(folder).get("/api/records?run=broken").status_code == 404


def test_the_report_of_chosen_runs_is_served_with_its_own_policy(folder: Path) -> None:
    answer = client(folder).get("/report", params={"run": ["a", "sweep/b"]})
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"  # the rest is in the page
    assert "sha256-" in answer.text.split("<title>")[0]


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_loopback_addresses_are_recognised(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        live_app(str(tmp_path / "none"))


@pytest.mark.parametrize("host", ["300.1.1.1", "a..b", ""])
def test_a_host_that_does_not_exist_is_refused_before_an_address_is_announced(folder: Path, host: str) -> None:
    announced: list[str] = []
    with pytest.raises(InputError, match="Choose another --host or --port"):
        serve(str(folder), host=host, announce=announced.append)
    assert announced == []


def test_a_port_in_use_is_refused(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"already in use\. Choose another --host or --port"):
            serve(str(folder), port=taken.getsockname()[1])


def test_the_server_starts_without_reading_records_or_loading_tables(folder: Path) -> None:
    code = (
        "import sys\n"
        "from anisoscope.report.live import live_app\n"
        f"app = live_app({str(folder)!r}); app.state.index.listing()\n"
        "print(sorted({'torch', 'pandas', 'altair', 'vl_convert'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path", ["/", "/assets/page.js", "/assets/nope", "/nowhere", "/api/runs", "/api/records?run=x"]
)
def test_every_response_has_the_protective_headers(folder: Path, path: str) -> None:
    headers = TestClient(live_app(str(folder)), base_url="http://127.0.0.1").get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    ["/", "/assets/page.js", "/api/runs", "/api/records?run=a", "/api/events?run=a&position=0", "/report?run=a", "/x"],
)
@pytest.mark.parametrize("given", ["", "wrong", "\u00e9", "secre", "secrett"])
def test_no_route_answers_without_the_token(folder: Path, path: str, given: str) -> None:
    client = TestClient(live_app(str(folder), token="secret"), base_url="http://10.0.0.1")
    joined = f"{path}{'&' if '?' in path else '?'}token={given}"
    answer = client.get(joined, follow_redirects=False, headers={"cookie": "anisoscope_token=wrong"})
    assert answer.status_code == 401
    assert "secret" not in answer.text + str(answer.headers)


@pytest.mark.parametrize(
    "host", ["[", "[::1", "evil.example", "127.0.0.1.evil.example", "an_evil.example", "", "0.0.0.0"]
)
def test_an_unknown_host_is_refused(folder: Path, host: str) -> None:
    client = TestClient(live_app(str(folder)), base_url="http://127.0.0.1", raise_server_exceptions=True)
    assert client.get("/api/runs", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("position", ["9" * 30, "9" * 5000, "-1", "1e3", "x"])
def test_an_invalid_position_is_refused(folder: Path, position: str) -> None:
    client = TestClient(live_app(str(folder)), base_url="http://127.0.0.1")
    name = client.get("/api/runs").json()[0]["id"]
    assert client.get("/api/events", params={"run": name, "position": position}).status_code == 404


def test_a_followed_run_costs_the_server_nothing_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_POLL_EVERY", 0.001)
    path = tmp_path / "r"
    Run.create(path).close()

    async def follow() -> list[int]:
        stream = live._follow([Run.open(path)], [0])
        await anext(stream)
        marks = []
        with Run.create(path, resume=True) as writer:
            for step in range(60):
                writer.append([Record(f"resid.{layer}", "isoscore", 0.5, step=step) for layer in range(20)])
                assert len(json.loads((await anext(stream)).removeprefix("data: "))["rows"]) == 20
                if step in (20, 59):
                    gc.collect()
                    marks.append(tracemalloc.get_traced_memory()[0])
        await stream.aclose()  # type: ignore[attr-defined]
        return marks

    tracemalloc.start()
    try:
        early, late = asyncio.run(follow())
    finally:
        tracemalloc.stop()
    assert late - early < 50_000


def require_every_view(folder: Path, count: int) -> None:
    run = long_run(folder / "run", count)
    frame = run.table()
    assert len(frame) == count
    assert [frame["step"].iloc[-1], len(run.sites())] == [frame["step"].max(), 38]
    shown = CliRunner().invoke(app, ["show", str(run.path)])
    assert shown.exit_code == 0
    assert "spectral_anisotropy" in shown.stdout
    page = report_page([run])
    assert f"{count:,} records" in page  # all of them: nothing is thinned
    other = long_run(folder / "other", count, seed=1)
    compared = CliRunner().invoke(app, ["compare", str(run.path), str(other.path)])
    assert compared.exit_code == 0, compared.output
    assert f"the last of {frame['step'].nunique():,} that both have" in " ".join(compared.stdout.split())


def test_every_view_of_twenty_thousand_records(tmp_path: Path) -> None:
    require_every_view(tmp_path, 20_000)


@pytest.mark.slow
def test_every_view_of_a_million_records_in_bounded_memory(tmp_path: Path) -> None:
    before = psutil.Process().memory_info().rss
    require_every_view(tmp_path, 1_000_000)
    assert psutil.Process().memory_info().rss - before < 1.5e9
    assert os.path.getsize(tmp_path / "run" / "records.jsonl") > 2e8


def test_too_much_at_once_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client(folder)
    assert page.get("/api/records", params={"run": ["a"] * 25}).status_code == 404
    assert page.get("/api/runs?x=" + "y" * 20_000).status_code == 414
    assert page.request("GET", "/api/runs", content=b"body").status_code == 413
    monkeypatch.setattr("anisoscope.report.live._MOST_STREAMS", 0)
    refused = page.get("/api/events", params={"run": "a", "position": 0})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_streams_that_open_at_the_same_moment_are_counted(folder: Path) -> None:
    app, statuses = live_app(str(folder)), []
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/api/events", "http_version": "1.1"}
    scope |= {"headers": [(b"host", b"localhost")], "query_string": b"run=a&position=0"}

    async def open_many() -> None:
        answered, closed = asyncio.Barrier(40), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await closed.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                await answered.wait()
                closed.set()

        await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(40)))

    asyncio.run(open_many())
    assert (statuses.count(200), statuses.count(503)) == (live._MOST_STREAMS, 8)
    assert app.state.streams == 0


def test_every_answer_forbids_scripts_of_others(folder: Path) -> None:
    for address in ("/", "/api/runs", "/assets/page.css", "/missing"):
        policy = client(folder).get(address).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
