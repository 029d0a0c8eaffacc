"""What rounding weights to 4 or 8 bits does to each metric: the same model, exact and rounded, on the same tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from anisoscope.errors import InputError
from anisoscope.store.files import read_json, write_text
from anisoscope.store.run import Run
from anisoscope.studies.atlas.atlas_inputs import input_source
from anisoscope.studies.atlas.atlas_registry import AtlasModel, Registry
from anisoscope.studies.atlas.atlas_runs import METRICS, AtlasSubject, OnStatus, run_subjects
from anisoscope.studies.atlas.builders import model_folder
from anisoscope.studies.atlas.checks import run_check
from anisoscope.studies.atlas.evidence import Profiles, profiles_of

KINDS = ("Q8_0", "Q4_0")
MODELS = ("stories15M", "MiniLM-L6")
_BLOCK = 32  # weights that share a scale


@dataclass(frozen=True)
class Shift:
    """How rounding moves one metric over the layers.

    Attributes:
        model: The model.
        kind: Q8_0 or Q4_0.
        metric: The metric.
        tokens: The token policy.
        change: Median of |rounded − exact| over the layers.
        errors: Median of that difference in error bars of the exact value.
        layers: Share of layers where the difference exceeds the error bar.
        check: What the known-good check gives for the rounded model, in words.
    """

    model: str
    kind: str
    metric: str
    tokens: str
    change: float
    errors: float
    layers: float
    check: str = ""

    @property
    def moved(self) -> bool:
        """Whether rounding moves the metric by more than its error, at the median layer."""
        return self.errors > 1


def round_weights(folder: Path, out: Path, kind: str) -> Path:
    """Write a copy of a model whose matrices were rounded as in a GGUF file and expanded again.

    Args:
        folder: A Hugging Face folder with float32 weights.
        out: The copy.
        kind: Q8_0 or Q4_0: blocks of 32 weights share a scale.

    Raises:
        InputError: No matrix of the model can be rounded.
    """
    from gguf import GGMLQuantizationType, quants

    if out.is_dir():
        return out
    scratch = out.with_name(out.name + "-unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    which = GGMLQuantizationType[kind]
    rounded = 0
    for file in scratch.glob("*.safetensors"):
        tensors = {}
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = stored.get_tensor(name)
                if tensor.ndim == 2 and tensor.shape[1] % _BLOCK == 0 and tensor.is_floating_point():
                    packed = quants.quantize(np.ascontiguousarray(tensor.float().numpy()), which)
                    tensor = torch.from_numpy(quants.dequantize(packed, which).copy())
                    rounded += 1
                tensors[name] = tensor
        save_file(tensors, file, metadata={"format": "pt"})
    if not rounded:
        raise InputError(f"{folder} has no matrix with rows of a multiple of {_BLOCK}, so nothing can be rounded.")
    scratch.rename(out)
    return out


def quantisation_study(
    models: Sequence[AtlasModel], registry: Registry, cache: Path, *, on_status: OnStatus | None = None
) -> dict[str, Any]:
    """Measure models exact and rounded on the input of their domain; returns profiles and checks by model and kind."""
    say = on_status or (lambda _: None)
    results: dict[str, Any] = {}
    for model in models:
        folder = model_folder(model, cache)
        item = registry.inputs[model.input]
        source = input_source(item, registry, cache)
        folders = {"exact": folder}
        folders |= {kind: round_weights(folder, folder.with_name(f"{folder.name}-{kind}"), kind) for kind in KINDS}
        subjects = {
            kind: AtlasSubject(
                where, source, item.kind, model.tokens, model.window, cache / "runs" / f"{where.name}--{model.input}"
            )
            for kind, where in folders.items()
        }
        for kind, _ in run_subjects(subjects):
            say(f"{model.name}: {kind} measured")
        results[model.name] = {
            kind: {
                "check": run_check(folders[kind], model.check, source).text,
                "profiles": profiles_of(Run.open(subject.out).records(), METRICS),
            }
            for kind, subject in subjects.items()
        }
    return results


def shifts(results: dict[str, Any]) -> list[Shift]:
    """Compare rounded with exact profiles, metric by metric.

    >>> exact = {"two_nn": {"all": [["resid.0", 10.0, 0.5, None], ["resid.1", 12.0, 0.5, None]]}}
    >>> other = {"two_nn": {"all": [["resid.0", 10.1, 0.5, None], ["resid.1", 14.0, 0.5, None]]}}
    >>> results = {"m": {"exact": {"profiles": exact}, "Q4_0": {"profiles": other}}}
    >>> [(s.kind, round(s.change, 2), round(s.errors, 1), s.moved) for s in shifts(results)]
    [('Q4_0', 1.05, 2.1, True)]
    """
    listed = []
    for model, kinds in results.items():
        exact: Profiles = kinds["exact"]["profiles"]
        for kind in (kind for kind in kinds if kind != "exact"):
            for metric, policies in exact.items():
                for tokens, points in policies.items():
                    others = {p[0]: p[1] for p in kinds[kind]["profiles"].get(metric, {}).get(tokens, [])}
                    pairs = [(abs(others[s] - v), e) for s, v, e, _ in points if s in others and e]
                    if pairs:
                        ratios = [change / error for change, error in pairs if error]
                        changes = [change for change, _ in pairs]
                        share = sum(ratio > 1 for ratio in ratios) / len(ratios)
                        middle = (median(changes), median(ratios), share)
                        listed.append(Shift(model, kind, metric, tokens, *middle, kinds[kind].get("check", "")))
    return listed


def write_study(results: dict[str, Any], path: Path) -> None:
    """Write the results of the study."""
    write_text(path, json.dumps(results, ensure_ascii=False, separators=(",", ":")) + "\n")


def read_study(path: Path) -> dict[str, Any]:
    """Read the results of a study; empty if there are none."""
    return read_json(path) if path.is_file() else {}
