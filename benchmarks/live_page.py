"""The live page with many runs: the time to list 100 runs with a million records, and to read one and eight of them.

python -m benchmarks.live_page              # the server, and the page in chromium if that is installed
python -m benchmarks.live_page page.png     # also keep a picture of the page with eight runs
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from anisoscope.records import Record
from anisoscope.report.live import live_app
from anisoscope.store.run import Run
from tests.browser.conftest import CHROMIUM, DRIVER, serving, start_browser

RUNS, STEPS, LAYERS = 100, 125, 40  # times two token policies: a million records
SHOWN = 8  # runs in the charts of the browser
_LINES = "return document.querySelectorAll('#chart svg .mark-line path').length"


def make_runs(root: Path) -> int:
    """Write the runs; returns the number of records."""
    records = [
        Record(f"resid.{layer}", "isoscore", 0.5 / (1 + layer + step), step=step, tokens=tokens, null=0.9, n=4096)
        for step in range(STEPS)
        for layer in range(LAYERS)
        for tokens in ("all", "no-sink")
    ]
    records += [Record("loop", "train_loss", 4.0 / (1 + step), step=step) for step in range(STEPS)]
    for number in range(RUNS):
        with Run.create(root / f"run-{number:03d}") as run:
            run.append(records)
    return RUNS * len(records)


def measured(picture: Path | None = None) -> dict[str, Any]:
    """Seconds of each request and the bytes of its answer; seconds of a browser to show one and eight runs."""
    with tempfile.TemporaryDirectory() as folder:
        count = make_runs(Path(folder) / "runs")
        app = live_app(str(Path(folder) / "runs"))
        page = TestClient(app, base_url="http://127.0.0.1")
        requests = {
            "list, first": "/api/runs",
            "list, again": "/api/runs",
            "one run": "/api/records?run=run-000",
            "eight runs": "/api/records?" + "&".join(f"run=run-{i:03d}" for i in range(8)),
        }
        results: dict[str, Any] = {"runs": RUNS, "records": count}
        for name, address in requests.items():
            start, cpu = time.perf_counter(), time.process_time()
            answer = page.get(address)
            results[name] = {
                "seconds": round(time.perf_counter() - start, 2),
                "cpu seconds": round(time.process_time() - cpu, 2),
                "bytes": len(answer.content),
            }
        if CHROMIUM is not None and DRIVER is not None:
            results["browser"] = _in_browser(app, Path(folder) / "profile", SHOWN * count // RUNS, picture)
        return results


def _in_browser(app: Any, profile: Path, shown: int, picture: Path | None) -> dict[str, float]:
    """Seconds until the list and the charts of one run are drawn, and those of all runs with `shown` records."""
    driver = start_browser(profile)
    driver.set_window_size(1400, 1000)
    try:
        with serving(app) as address:
            began = time.perf_counter()
            driver.get(address)
            _wait(driver, "return document.documentElement.dataset.ready")
            _wait(driver, f"return document.querySelectorAll('#runs input').length >= {RUNS}")
            listed = time.perf_counter()
            _wait(driver, f"{_LINES} > 0")
            first = time.perf_counter()
            for number in range(2, SHOWN + 1):  # one after another: the list is drawn again after each
                driver.execute_script("document.querySelector('#runs input:not(:checked)').click()")
                _wait(driver, f"return document.querySelectorAll('#runs input:checked').length === {number}")
            _wait(driver, f"return document.querySelector('#status').textContent.includes('{shown:,} records')")
            all_drawn = time.perf_counter()
            heap = driver.execute_script("return performance.memory.usedJSHeapSize")
            if picture is not None:
                driver.save_screenshot(str(picture))
            driver.get("about:blank")  # ends the page's stream of events
        seconds = {"list": listed - began, "one run": first - began, "seven more runs": all_drawn - first}
        return {name: round(value, 2) for name, value in seconds.items()} | {"heap in MB": round(heap / 1e6)}
    finally:
        driver.quit()


def _wait(driver: Any, script: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not driver.execute_script(script):
        if time.monotonic() > deadline:
            raise SystemExit(f"The page did not answer within {seconds:.0f} s: {script}")
        time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]) if sys.argv[1:] else None), indent=2))
