"""Runs of the six kinds of report pages, computed from formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anisoscope.records import Record
from anisoscope.store.run import Run
from tests.report_runs import card, curves, heads, info, verdicts

NULLS = {"mean_cosine": 0.0, "isoscore": 0.9, "participation_ratio": 62.0, "spectral_anisotropy": 0.01}
POLARITY = {"isoscore": "low", "participation_ratio": "low", "two_nn": "low"}
CARDS = {
    name: card(name, f"What {name} means.", notable=POLARITY.get(name, "high"), low=None, high=None)
    for name in ("spectral_anisotropy", "mean_cosine", "mean_cosine_centred", "isoscore", "participation_ratio",
                 "two_nn", "top_coordinate", "relative_drift", "effective_rank")
}  # fmt: skip


def _word(text: str, count: int, norm: float, left: str, right: str) -> dict[str, Any]:
    context = {"left": left, "shown": text, "right": right}
    return {"site": "resid.5", "token": count, "norm over median": norm, "count": count, "text": text, **context}


WORDS = [
    _word(" the", 19, 911.0, "They walked to", " river before"),
    _word("\n", 10, 1204.0, "= The second voyage =", " In the spring of"),
    _word(".", 8, 640.0, "nobody could find the door", " It was"),
]


def model_records(layers: int, *, sinks: float, scale: float = 1.0, step: int = 0) -> list[Record]:
    """Headline metrics over layers; with sinks, the top direction dominates the middle layers over all tokens."""
    records = []
    sites = ["embed", *(f"resid.{i}" for i in range(layers)), "final"]
    for position, site in enumerate(sites):
        depth = position / (len(sites) - 1)
        middle = math.exp(-(((depth - 0.5) / 0.22) ** 2))
        values = {
            "spectral_anisotropy": scale * (0.06 + 0.06 * depth),
            "mean_cosine": scale * (0.15 + 0.4 * depth),
            "mean_cosine_centred": 0.001 * depth,
            "isoscore": 0.12 - 0.08 * depth,
            "participation_ratio": 34 - 20 * depth,
            "two_nn": 5 + 8 * math.sin(3 * depth),
            "top_coordinate": 0.1 + 0.3 * depth,
            "relative_drift": 0.3 + 0.4 * depth,
            "effective_rank": 200 - 90 * depth,
        }
        for metric, value in values.items():
            for tokens, n in (("all", 4096), ("no-sink", 4051)):
                shown = (
                    value + (sinks - value) * middle if tokens == "all" and metric == "spectral_anisotropy" else value
                )
                same: dict[str, Any] = {"tokens": tokens, "n": n, "step": step, "null": NULLS.get(metric)}
                error: dict[str, Any] = {"error": 0.02 * abs(shown), "error_kind": "jackknife-16-documents"}
                records.append(Record(site, metric, shown, **same, **error))
    return records


def model(root: Path) -> list[Run]:
    removed = {"count": 37, "tokens": [{"text": word["text"]} for word in WORDS], "words": WORDS}
    return [_run(root / "decoder", [*model_records(24, sinks=0.99), *curves(), *heads()], removed=removed)]


def two_models(root: Path) -> list[Run]:
    encoder = _run(root / "encoder", model_records(6, sinks=0.1, scale=0.8), removed={"count": 0, "tokens": []})
    return [*model(root), encoder]


def vectors(root: Path) -> list[Run]:
    """Vectors without layers: single numbers, a spectrum, a removal curve."""
    same: dict[str, Any] = {"n": 6000, "error_kind": "jackknife-16-rows"}
    nulls = NULLS | {"participation_ratio": 125.0}
    numbers = {"spectral_anisotropy": 0.3, "mean_cosine": 0.37, "mean_cosine_centred": 0.01, "isoscore": 0.1,
               "participation_ratio": 12.0, "two_nn": 14.0, "top_coordinate": 0.2}  # fmt: skip
    records = [
        Record("vectors", name, value, error=0.02 * value, null=nulls.get(name), **same)
        for name, value in numbers.items()
    ]
    ranks = (1, 2, 4, 8, 16, 32, 64, 128)
    records += [Record("vectors", "spectrum", 0.3 / rank, index=rank, null=1 / 128, n=6000) for rank in ranks]
    records += [Record("vectors", "removal_curve", 0.3 / (1 + k), index=k, null=0.01) for k in (0, 1, 2, 4, 8, 16)]
    records += [Record("vectors", "gride", 14 + math.log(k), index=k, error=0.2) for k in (1, 2, 4, 8)]
    data = {"file": "embeddings.npy", "n": 6000, "d": 128}
    return [_run(root / "embeddings", records, kind="vectors", model=None, data=data, removed={})]


def training(root: Path) -> list[Run]:
    """Losses of every step, probes at log-spaced steps, learning rate, gradient norm and two alerts."""
    records = [record for step in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) for record in _probe(step)]
    for step in range(0, 257, 2):
        loss = 2.2 + 2.4 * math.exp(-step / 40)
        records += [
            Record("loop", "train_loss", loss + 0.1 * math.sin(7 * step), step=step),
            Record("loop", "learning_rate", 1e-3 * min(1.0, (step + 1) / 20), step=step),
            Record("loop", "gradient_norm", 1.5 + math.cos(step / 9), step=step),
        ]
        records += [Record("loop", "validation_loss", loss + 0.05, step=step)] if step % 32 == 0 else []
    for step, site in ((64, "resid.3"), (128, "resid.5")):
        note = "isoscore 0.005, below 0.01 for 3 probes"
        records.append(
            Record(site, "alert", 0.005, step=step, tokens="no-sink", variant={"rule": "collapse"}, note=note)
        )
    removed = {"count": 37, "tokens": [], "words": WORDS}
    return [_run(root / "training", [*records, *heads()], kind="training", removed=removed)]


def _probe(step: int) -> list[Record]:
    return model_records(8, sinks=0.2 + 0.5 * step / 256, scale=0.5 + step / 256, step=step)


def tangent(root: Path) -> list[Run]:
    """Energies of gradients in two bases at four layers with their nulls and tests."""
    records = []
    for layer in range(4):
        for proxy, energy in (("pca", 0.6), ("semi_nmf", 0.5)):
            for rank in (2, 4, 8):
                records += _energies(f"grad.resid.{layer}", proxy, rank, energy * (0.5 + rank / 16) - 0.05 * layer)
    return [_run(root / "tangent", records, kind="tangent")]


def _energies(site: str, proxy: str, rank: int, energy: float) -> list[Record]:
    about = {"gradient": "hidden", "basis": "refreshed"}
    kind: dict[str, Any] = {"error": 0.01, "error_kind": "jackknife-16-documents"}
    level = rank / 64
    records = [
        Record(site, "gradient_energy", energy, index=rank, null=level, n=2048,
               variant={**about, "proxy": proxy, "rows": rows}, **kind)
        for rows in ("plain", "unit")
    ]  # fmt: skip
    control = {**about, "proxy": proxy, "rows": "plain", "null": "normal_control"}
    records.append(Record(site, "gradient_energy", energy, index=rank, null=level / 3, variant=control))
    for null in ("orientation", "coordinates"):
        for rows in ("plain", "unit"):
            variant = {**about, "proxy": proxy, "rows": rows, "null": null}
            records += [Record(site, name, 0.001, index=rank, variant=variant) for name in ("gradient_p", "gradient_q")]
    return records


def claims(root: Path) -> list[Run]:
    return [_run(root / "claims", verdicts(), kind="claims", model=None, data=None, removed={})]


def _run(path: Path, records: Sequence[Record], **more: Any) -> Run:
    with Run.create(path, info(**{"metrics": CARDS, **more}), command="anisoscope measure tiny") as run:
        run.append(records)
    return Run.open(path)


KINDS: dict[str, Callable[[Path], list[Run]]] = {
    "vectors": vectors,
    "model": model,
    "two-models": two_models,
    "training": training,
    "tangent": tangent,
    "claims": claims,
}
