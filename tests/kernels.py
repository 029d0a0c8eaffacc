"""Run the numeric tests under several CPU kernels and report which assertions come close to their limits.

    python -m tests.kernels                       # all settings that this processor supports and does not pick itself
    python -m tests.kernels MKL_CBWR=COMPATIBLE   # one setting, or several

A processor picks the kernels of PyTorch, MKL and OpenBLAS, and each kernel rounds differently. The environment
variables below force another choice, so one machine can show what a test would do on others. Without arguments the
last table lists every assertion that came within 20 % of its limit under some setting, if it also moved between
settings: an assertion that gives the same number everywhere cannot fail on another processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
SETTINGS = (
    "OMP_NUM_THREADS=1",  # the kernels that this processor picks itself; every setting but the next two runs one thread
    "OMP_NUM_THREADS=2",
    "OMP_NUM_THREADS=4",
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "ATEN_CPU_CAPABILITY=avx512",
    "MKL_CBWR=COMPATIBLE",
    "MKL_CBWR=AVX2",
    "MKL_ENABLE_INSTRUCTIONS=AVX2",
    "OPENBLAS_CORETYPE=Haswell",
)
NEAR = 0.2  # share of the limit
MOVES = 1e-3  # share of the limit by which a value must differ between settings to count as moving


@dataclass(frozen=True)
class Margin:
    """One numeric assertion of one test under one setting."""

    setting: str
    test: str
    line: str
    text: str
    gap: float


def supported(setting: str) -> bool:
    """Whether this processor has the instructions; PyTorch would crash instead of refusing."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "avx2 avx512f"
    needs = {"avx2": " avx2", "haswell": " avx2", "avx512": " avx512f"}.get(setting.partition("=")[2].lower(), "")
    return needs in flags


def is_own_choice(setting: str) -> bool:
    """Whether PyTorch picks these kernels here anyway, so that `OMP_NUM_THREADS=1` runs the same code."""
    name, _, value = setting.partition("=")
    return name == "ATEN_CPU_CAPABILITY" and value.upper() == torch.backends.cpu.get_cpu_capability()


def run(setting: str, folder: Path) -> tuple[int, list[Margin]]:
    """The exit code of the numeric tests under a setting, and the margin of every numeric assertion."""
    folder.mkdir()
    name, _, value = setting.partition("=")
    # assertions are compiled to report also when they pass; that must not end up in the caches of ordinary runs
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder.parent / "pycache")}
    environment["OMP_WAIT_POLICY"] = "passive"  # more threads than cores: those that wait must not take a core
    workers = "1" if name == "OMP_NUM_THREADS" and value != "1" else "2"  # two workers of several threads only wait
    command = [sys.executable, "-m", "pytest", "-n", workers, "-m", "numeric and not slow and not real"]
    command += ["-p", "tests.margins", f"--margins={folder}", "-o", "enable_assertion_pass_hook=true"]
    done = subprocess.run(command, cwd=ROOT, env={**environment, name: value}, check=False)
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return done.returncode, [Margin(setting, **line) for line in lines]


def near(margins: list[Margin]) -> list[Margin]:
    """The closest margin of every assertion that came near its limit and moved between settings, closest first."""
    by_assertion: dict[tuple[str, str], list[Margin]] = defaultdict(list)
    for margin in margins:
        by_assertion[margin.test, margin.line].append(margin)
    closest = []
    for same in by_assertion.values():
        smallest, largest = (pick(same, key=lambda margin: margin.gap) for pick in (min, max))
        if smallest.gap <= NEAR and largest.gap - smallest.gap > MOVES:
            closest.append(smallest)
    return sorted(closest, key=lambda margin: margin.gap)


def table(margins: list[Margin]) -> str:
    """One line per assertion: room left, setting, line and test."""
    lines = [f"{'room':>6}  {'setting':28}  {'comparison':44}  test"]
    for m in margins:
        test = m.test.partition("::")[2]
        lines.append(f"{100 * m.gap:5.1f}%  {m.setting:28}  {m.text[:44]:44}  {m.line} {test}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    settings = arguments or [setting for setting in SETTINGS if supported(setting) and not is_own_choice(setting)]
    for setting in settings:
        if setting not in SETTINGS or not supported(setting):
            sys.exit(f"{setting} is not a setting for this processor. Settings: {', '.join(SETTINGS)}")
    margins: list[Margin] = []
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for number, setting in enumerate(settings):
            began = time.monotonic()
            print(f"=== {setting} ({number + 1} of {len(settings)})", flush=True)
            code, recorded = run(setting, Path(folder) / str(number))
            margins += recorded
            failed += [setting] if code else []
            print(f"=== {setting}: {'failed' if code else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
    if len(settings) > 1:
        print(f"\nAssertions within {NEAR:.0%} of their limit that move between settings:\n{table(near(margins))}")
    print(f"\nsettings: {len(settings) - len(failed)} passed, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
