"""Models that were measured again from nothing: how far the new numbers are from the evidence of the library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from anisoscope.errors import InputError
from anisoscope.store.files import parse_errors, read_json, write_text
from anisoscope.studies.atlas.evidence import ModelEvidence

WITHIN = 2  # errors, of both values together


@dataclass(frozen=True)
class Rerun:
    """One model, measured twice.

    Attributes:
        model: Its name.
        values: How many values with an error bar both measurements have.
        within: How many of them differ by at most two errors.
        largest: The largest difference, in errors.
        where: The metric and site of the largest difference.
    """

    model: str
    values: int
    within: int
    largest: float
    where: str

    @property
    def text(self) -> str:
        """The comparison in one sentence."""
        if not self.largest:
            return f"**{self.model}**: all {self.values:,} values are the same as before."
        share = self.within / self.values
        return (
            f"**{self.model}**: {self.within:,} of {self.values:,} values ({share:.1%}) agree within {WITHIN} errors; "
            f"the largest difference is {self.largest:.2g} errors ({self.where})."
        )


def compare_reruns(first: ModelEvidence, second: ModelEvidence) -> Rerun:
    """Compare two measurements of a model: every metric, site, token policy and input, trained and untrained.

    The error of a difference is the root of both squared errors. Values without an error bar are not compared.

    Raises:
        InputError: They have no value in common.
    """
    distances: list[tuple[float, str]] = []
    for name, entry in first.inputs.items():
        for state in ("trained", "untrained"):
            for metric, policies in entry.get(state, {}).items():
                for tokens in policies:
                    others = {point[0]: point for point in second.points(metric, tokens, input=name, state=state)}
                    for site, value, error, _ in first.points(metric, tokens, input=name, state=state):
                        other = others.get(site)
                        if other is not None and error and other[2]:
                            both = (error**2 + other[2] ** 2) ** 0.5
                            where = f"{metric} at {site}, {state}, {tokens}, {name}"
                            distances.append((abs(value - other[1]) / both, where))
    if not distances:
        raise InputError(f"The two measurements of {first.name} have no value in common.")
    largest, where = max(distances)
    within = sum(distance <= WITHIN for distance, _ in distances)
    return Rerun(first.name, len(distances), within, round(largest, 3), where)


def write_reruns(reruns: list[Rerun], path: Path) -> None:
    """Write comparisons as JSON."""
    write_text(path, json.dumps([asdict(rerun) for rerun in reruns], ensure_ascii=False, indent=1) + "\n")


def read_reruns(path: Path) -> list[Rerun]:
    """Read comparisons; none if there is no such file."""
    if not path.is_file():
        return []
    with parse_errors(path, "delete it and measure a model again"):
        return [Rerun(**values) for values in read_json(path)]
