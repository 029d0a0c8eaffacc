"""The evidence of runs of claims as small files that come with the package, one per size, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, unknown
from anisoscope.records import COLUMNS, Record
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import Claim, Evidence, Verdict
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.runner import CLAIMS, evidence_run, find_size, keep_evidence, kept_evidence, publish
from anisoscope.studies.claims.training_losses import losses_of

SIZES = ("small", "medium")  # for which the package has evidence
_INFO = ("settings", "versions", "machine", "minutes")
_DIGITS = 5  # significant digits of a number in a figure
_DEFAULTS = {name: value for name, value in Record("vectors", "x", None).to_json().items() if name != "site"}


def pack_evidence(folder: str | Path) -> dict[str, Any]:
    """Return the evidence of a run of claims without weights: quantities, records of the figures, and losses.

    Raises:
        InputError: The folder is a run of something else.
    """
    run = Run.open(folder)
    if run.info.get("kind") != "claims":
        raise InputError(f"{folder} is a run, but not of claims.")
    packed: dict[str, Any] = {}
    for claim in CLAIMS:
        evidence, home = kept_evidence(folder, claim.id), evidence_run(folder, claim.id)
        if evidence is not None and home is not None:
            shown = [record for record in evidence.records if record.metric in claim.figure]
            packed[claim.id] = {**evidence.to_json(), "records": [_short(record) for record in shown]}
    size = find_size(run.info["settings"]["size"], run.info["settings"]["seeds"])
    info = {name: run.info.get(name) for name in _INFO}
    return {**info, "losses": losses_of(Path(folder) / "lab", size), "claims": packed}


def _short(record: Record) -> dict[str, Any]:
    values = record.to_json()
    kept = {name: values[name] for name in COLUMNS if values[name] != _DEFAULTS.get(name, object())}
    return {name: _rounded(value) if isinstance(value, float) else value for name, value in kept.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def file_of(size: str) -> str:
    """Return the name of the file that holds the evidence of a size.

    Raises:
        InputError: The package has no evidence of this size.
    """
    if size not in SIZES:
        raise unknown("evidence of size", size, SIZES)
    return f"{size}_evidence.json"


def committed(size: str = "small") -> dict[str, Any]:
    """Return the evidence of a size that comes with the package."""
    text = files("anisoscope.studies.claims").joinpath(file_of(size)).read_text(encoding="utf-8")
    packed: dict[str, Any] = json.loads(text)
    return packed


def unpack_evidence(packed: Mapping[str, Any], folder: str | Path) -> Path:
    """Write packed evidence as a run of claims, with verdicts by the current rules.

    Args:
        packed: What `pack_evidence` returned.
        folder: A new folder.

    Returns:
        The folder.
    """
    out = Path(folder)
    info = {"kind": "claims", **{name: packed[name] for name in _INFO}}
    with Run.create(out, info) as run:
        for claim, evidence in evidence_of(packed):
            keep_evidence(out, claim, evidence)
            publish(run, claim, judge(claim, evidence))
    return out


def evidence_of(packed: Mapping[str, Any]) -> list[tuple[Claim, Evidence]]:
    """Return every claim of packed evidence with its evidence."""
    known = {claim.id: claim for claim in CLAIMS}
    pairs = []
    for name, values in packed["claims"].items():
        records = [Record.from_json({**_DEFAULTS, **record}) for record in values["records"]]
        pairs.append((known[name], Evidence.from_json(values, records)))
    return pairs


def judged(packed: Mapping[str, Any]) -> list[tuple[Claim, Sequence[Verdict]]]:
    """Return every claim of packed evidence with its verdicts by the current rules."""
    return [(claim, judge(claim, evidence)) for claim, evidence in evidence_of(packed)]
