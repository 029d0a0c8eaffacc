"""The live page with many runs: the time to list 100 runs with a million records, and to read one and eight of them.

python -m benchmarks.live_page
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from anisoscope.records import Record
from anisoscope.report.live import live_app
from anisoscope.store.run import Run

RUNS, STEPS, LAYERS = 100, 125, 40  # times two token policies: a million records


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


def measured() -> dict[str, Any]:
    """Seconds of each request, and the bytes of its answer."""
    with tempfile.TemporaryDirectory() as folder:
        count = make_runs(Path(folder))
        page = TestClient(live_app(folder), base_url="http://127.0.0.1")
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
        return results


if __name__ == "__main__":
    print(json.dumps(measured(), indent=2))
