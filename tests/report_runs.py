"""Runs of every shape that reports must show, computed from simple formulas."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.records import COLUMNS, Record
from anisoscope.store.run import Run

LAYERS = 6
HOSTILE = "<script>document.title='taken'</script>"
CARD = {"family": "isotropy", "low": 0, "high": 1, "ignores": ["scale"], "paper": "razzhigaev2023", "version": 1}


def card(name: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "meaning": meaning, "text": f"{meaning}\n\nA formula: λ1/Σλ < 1.", **CARD, **more}


CARDS = {
    "spectral_anisotropy": card(
        "spectral_anisotropy", "Share of the variance that the top direction carries.", notable="high"
    ),
    "two_nn": card("two_nn", "Intrinsic dimension from two neighbours.", family="dimension", high=None),
    "gradient_energy": card("gradient_energy", "Share of the gradients inside a basis.", family="alignment"),
}


def info(**more: Any) -> dict[str, Any]:
    return {
        "kind": "model",
        "model": {"source": "tiny", "revision": "main", "dtype": "float32"},
        "data": {"source": "book.txt", "tokens": 4096},
        "token_policy": {"special": True},
        "unit": "documents",
        "seed": 0,
        "versions": {"anisoscope": "0.1.0"},
        "metrics": CARDS,
        "removed": {"count": 2, "tokens": [{"token": 1, "text": "\n"}, {"token": 2, "text": "<b>'</b>"}]},
        **more,
    }


def sites() -> list[str]:
    return ["embed", *(f"resid.{i}" for i in range(LAYERS)), "final"]


def bell(position: int) -> float:
    """0.05 at both ends, 0.95 in the middle of the layers."""
    return 0.05 + 0.9 * math.exp(-((position - 3.5) ** 2) / 2)


def profiles(steps: Iterable[int] = (0,), scale: float = 1.0) -> list[Record]:
    """Two metrics over layers and steps, under `all` a bell that grows and under `no-sink` nearly flat."""
    out = []
    for step in steps:
        growth = scale * (1 - math.exp(-(step + 20) / 100))
        for position, site in enumerate(sites()):
            for tokens, value in (("all", bell(position) * growth), ("no-sink", 0.1)):
                same: dict[str, Any] = {
                    "step": step,
                    "tokens": tokens,
                    "n": 4096,
                    "error_kind": "jackknife-16-documents",
                }
                out.append(Record(site, "spectral_anisotropy", value, error=0.01, null=0.02, **same))
                dimension = 8.0 + position * growth
                variant = {"neighbours": "all"}
                note = "12 duplicate rows removed"
                out.append(Record(site, "two_nn", dimension, error=0.3, variant=variant, note=note, **same))
    return out


def curves() -> list[Record]:
    """By rank, by scale and by the number of tokens removed."""
    out = []
    for position, site in enumerate(sites()):
        same: dict[str, Any] = {"n": 4096}
        out += [
            Record(site, "spectrum", j ** -(1.0 + 0.1 * position), index=j, null=1 / 64, **same)
            for j in (1, 2, 4, 8, 16, 32, 64)
        ]
        out.append(Record(site, "spectrum", 0.0, index=65, **same))
        out += [
            Record(site, "gride", 8 + position + math.log(k), index=k, error=0.2, error_kind="jackknife-16-documents")
            for k in (1, 2, 4, 8, 16)
        ]
        out += [
            Record(site, "removal_curve", bell(position) / (1 + k), index=k, null=0.01) for k in (0, 1, 2, 4, 8, 16, 32)
        ]
        out += [
            Record(site, "cosine_contribution", 0.1 / (i + 1), index=(37 * position + 29 * i) % 64, **same)
            for i in range(4)
        ]
    return out


def heads(steps: Iterable[int] = (0,)) -> list[Record]:
    out = []
    for step in steps:
        for layer in range(LAYERS):
            for head in range(4):
                value = math.sin(layer + head + step / 200)
                site = f"pattern.{layer}"
                out.append(Record(site, "qk_cosine", value, index=head, step=step))
                out.append(Record(site, "attention_entropy", abs(value), index=head, step=step))
    return out


def gradients(steps: Iterable[int] = (0, 100, 1000)) -> list[Record]:
    """Energy by rank with three nulls, by stratum, and along single axes against their variance."""
    out = []
    for step in steps:
        for layer in range(LAYERS):
            site = f"grad.resid.{layer}"
            about = {"proxy": "pca", "gradient": "hidden", "basis": "refreshed", "rows": "plain"}
            for rank in (8, 16, 32, 64):
                energy = 1 - math.exp(-rank / (20 + layer + step / 100))
                same: dict[str, Any] = {"step": step, "index": rank, "error": 0.02}
                out.append(Record(site, "gradient_energy", energy, variant=about, null=rank / 128, **same))
                for null, level in (("haar", rank / 128), ("coordinates", rank / 100), ("normal_control", rank / 140)):
                    out.append(
                        Record(site, "gradient_energy", energy, variant={**about, "null": null}, null=level, **same)
                    )
                for position, stratum in enumerate(("rare", "common", "frequent")):
                    value = energy * (0.6 + 0.2 * position)
                    variant = {**about, "stratum": stratum}
                    out.append(Record(site, "gradient_energy", value, variant=variant, null=rank / 128, **same))
            for j in (1, 2, 4, 8, 16, 32, 64):
                variant = {"gradient": "hidden", "basis": "refreshed"}
                share, variance = j**-0.7, j**-1.2
                out.append(Record(site, "gradient_along_axis", share, index=j, step=step, variant=variant))
                out.append(Record(site, "variance_along_axis", variance, index=j, step=step, variant=variant))
    return out


def drifts(steps: Iterable[int] = (0, 1, 10, 100, 1000)) -> list[Record]:
    return [
        Record(site, "mean_direction_drift", math.exp(-step / 500) if position else 1.0, step=step)
        for step in steps
        for position, site in enumerate(sites())
    ]


def verdicts() -> list[Record]:
    """The contract of a verdict: the effect with its error; claim, line and verdict as variant; the reason as note."""
    lines = (("as published", "reproduced"), ("strongest control", "not reproduced"))
    return [
        Record(
            "vectors",
            "verdict",
            0.4 if line == "as published" else 0.01,
            error=0.05,
            variant={"claim": claim, "line": line, "verdict": verdict if claim != "N1" else "inconclusive"},
            note=f"{claim} on the lab",
        )
        for claim in ("S1", "S2", "N1")
        for line, verdict in lines
    ]


def pairs() -> list[Record]:
    """The similarity of every layer with every layer of another model."""
    others = [*sites()[:4], "final"]
    return [
        Record(site, "layer_cka", 0.9 * bell(i - j + 3), variant={"other": other}, error=0.01, null=0.0, n=512)
        for i, site in enumerate(sites())
        for j, other in enumerate(others)
    ]


def paths(steps: Iterable[int] = (0, 10, 100)) -> list[Record]:
    """The mean of each layer on two axes over training."""
    return [
        Record(f"resid.{layer}", "trajectory", 0.1 * layer * axis + 0.001 * step, step=step, variant=variant, n=64)
        for layer in range(3)
        for step in steps
        for axis in (1, 2)
        for variant in ({"axis": axis, "of": "mean"},)
    ]


def every_shape() -> list[Record]:
    steps = (0, 1, 10, 100, 1000)
    return [
        *profiles(steps), *curves(), *heads(steps), *gradients(), *drifts(), *verdicts(), *pairs(), *paths(),
    ]  # fmt: skip


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """Records as a table with the columns of a run's frame, without a run."""
    rows = [{**record.to_json(), "variant": json.dumps(dict(record.variant), sort_keys=True)} for record in records]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"index": "Int64", "n": "Int64"})


def make_run(path: Path, records: Iterable[Record], name: str | None = None, **more: Any) -> Run:
    """A finished run of these records."""
    with Run.create(path, info(**more), name=name, command="anisoscope measure tiny --text book.txt") as run:
        run.append(records)
    return Run.open(path)


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


def unpacked(text: str) -> tuple[dict[str, Any], bytes]:
    """The header and the columns of a packed table: what the page's own script unpacks, here in Python."""
    body = zlib.decompress(base64.b64decode(text))
    length = int.from_bytes(body[:4], "little")
    return json.loads(body[4 : 4 + length]), body[4 + length :]
