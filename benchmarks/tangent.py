"""Benchmark the tangent test: semi-NMF against Interpreto's, and all nulls on one due step."""

from __future__ import annotations

import statistics
import subprocess
import time

import numpy as np
import torch
from torch import Tensor

from anisoscope.tangent import factorise
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradient_records import tangent_records, with_q
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.site_bases import SiteBases, fit_site_bases
from benchmarks.harness import SCRATCH, Figure, Outcome, Settings, clock
from benchmarks.peers import Peer, command_of, installed, last_line

INTERPRETO = Peer(
    "Interpreto",
    (("torch==2.13.0", "numpy>=2", "tqdm", "einops", "matplotlib"), ("--no-deps", "interpreto==0.5.2")),
    "peer_interpreto.py",
)
CONCEPTS = 32
PROXIES, RANKS = ("pca", "semi_nmf"), (8, 16, 32, 64)
CORES = 2


def tangent(settings: Settings) -> Outcome:
    """Run both benchmarks of the tangent test."""
    return Outcome([*semi_nmf(settings), *battery(settings)])


def semi_nmf(settings: Settings) -> list[Figure]:
    """Compare time and error of our semi-NMF with Interpreto's, in alternating rounds, on two clouds."""
    n, d = (2048, 128) if settings.quick else (16_384, 768)
    reason = installed(INTERPRETO)
    figures = []
    for name, rows in (("parts", parts(n, d)), ("falling spectrum", falling(n, d))):
        title = f"semi-NMF, rank {CONCEPTS}, of {n:,} × {d} ({name})"
        if reason:
            figures.append(Figure(f"{title}: Interpreto's time in ours", None, "×", note=reason))
            continue
        path = SCRATCH / "exchange" / f"semi-nmf-{name.split()[0]}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, rows.numpy())
        times, errors = [], []
        for _ in range(1 if settings.quick else 3):
            start = clock()
            ours = factorise(rows, CONCEPTS)
            took = clock() - start
            line = [*command_of(INTERPRETO, settings.threads), str(path), str(CONCEPTS)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode:
                return [*figures, Figure(title, None, "×", note=last_line(done.stderr))]
            error, work, wall = map(float, done.stdout.split()[-3:])
            times.append((work if settings.threads == 1 else wall) / took)
            errors.append(ours.error / error)
        figures.append(
            Figure(f"{title}: Interpreto's time in ours", statistics.median(times), "×", 5, at_least=True, rounds=times)
        )
        figures.append(Figure(f"{title}: our error in Interpreto's", statistics.median(errors), "×", 1, rounds=errors))
    return figures


def battery(settings: Settings) -> list[Figure]:
    """Time two proxies, four ranks and all nulls on hidden gradients of every layer, at a first and a later step."""
    layers, n, d = (2, 1024, 256) if settings.quick else (12, 8192, 768)
    figures = []
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    try:
        frames: list[SiteBases | None] = [None] * layers
        for step in ("first", "later"):
            start = time.perf_counter()
            fitted, seconds = _due_step(layers, n, d, frames)
            frames = list(fitted)
            took = time.perf_counter() - start - seconds
            title = f"{step} due step: {layers} layers, d = {d}, {n:,} tokens, {CORES} cores"
            figures.append(Figure(title, took, "s", None if settings.quick else 15.0))
    finally:
        torch.set_num_threads(before)
    return figures


def _due_step(layers: int, n: int, d: int, before: list[SiteBases | None]) -> tuple[list[SiteBases], float]:
    """The frames of every layer after the whole battery ran, and the seconds that making the data took."""
    frames, records, seconds = [], [], 0.0
    for layer in range(layers):
        start = time.perf_counter()
        rows, gradients = falling(2 * n, d, seed=layer), falling(n, d, seed=100 + layer)
        seconds += time.perf_counter() - start
        frame = fit_site_bases(rows[:n], PROXIES, RANKS, start=before[layer])
        sums = Gradients.of(frame, gradients, rows[n:], torch.arange(n) * 8 // n)
        records += tangent_records(GradientCase(f"grad.resid.{layer}", "hidden", frame, sums))
        frames.append(frame)
    with_q(records)
    return frames, seconds


def parts(n: int, d: int, *, seed: int = 0) -> Tensor:
    """Return rows that are mixtures of 40 concepts with noise and a mean."""
    draw = torch.Generator().manual_seed(seed)
    loadings = torch.relu(torch.randn(n, 40, generator=draw))
    noise = 0.5 * torch.randn(n, d, generator=draw)
    return loadings @ torch.randn(40, d, generator=draw) + noise + torch.randn(d, generator=draw)


def falling(n: int, d: int, *, seed: int = 0) -> Tensor:
    """Return rows with a mean and a spectrum that falls like that of activations."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=draw) * torch.arange(1, d + 1)[:, None] ** -0.7
    return torch.randn(n, d, generator=draw) @ mix + torch.randn(d, generator=draw)
