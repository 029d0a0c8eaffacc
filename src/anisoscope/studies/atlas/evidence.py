"""The evidence of the atlas: one small JSON file per model, with the profiles of every metric over the layers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.records import Record, Site
from anisoscope.store.files import parse_errors, read_json, write_text
from anisoscope.studies.atlas.atlas_registry import cache_folder, registry

DIGITS = 4  # significant digits: far more than the error bars justify
_NOISE = 1e-9  # of a value: a jackknife of equal float64 numbers has errors of some 1e-15

# One point of a profile: site, value, error and null value.
Point = tuple[str, float, float | None, float | None]
# Points by metric and token policy.
Profiles = dict[str, dict[str, list[Point]]]


@dataclass(frozen=True)
class ModelEvidence:
    """What was measured on one model.

    Attributes:
        name: Its name in the atlas; see `AtlasModel` for the fields up to `note`.
        parameters: Number of weights.
        width: Width of the residual stream; 0 if it varies.
        check: The result of its known-good check, in words.
        seconds: Processor time of all measurements together; None if it is not known.
        memory: Peak memory beyond the weights, in MiB.
        inputs: By name of the input: what it is, `tokens`, and the profiles `trained` and `untrained`.
    """

    name: str
    family: str
    kind: str
    modality: str
    precision: str
    licence: str
    packages: list[str]
    note: str
    parameters: int
    width: int
    check: str
    seconds: int | None
    memory: int
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """The name of the input in the model's domain."""
        return next(iter(self.inputs))

    def points(
        self, metric: str, tokens: str = "all", *, input: str | None = None, state: str = "trained"
    ) -> list[Point]:
        """Return a profile over the layers of the main stack; empty if it was not measured.

        Args:
            metric: The metric.
            tokens: The token policy.
            input: The input. Default: that of the model's domain.
            state: "trained" or "untrained".
        """
        profiles = self.inputs.get(input or self.domain, {}).get(state, {})
        points = [(point[0], *point[1:]) for point in profiles.get(metric, {}).get(tokens, [])]
        stack = Site.parse(points[0][0]).stack if points else ""
        return [p for p in points if Site.parse(p[0]).stack == stack]

    @property
    def depth(self) -> int:
        """Number of layers of the main stack."""
        return sum(Site.parse(point[0]).kind == "resid" for point in self.points("spectral_anisotropy"))


def profiles_of(records: Iterable[Record], metrics: Sequence[str]) -> Profiles:
    """Return the profiles of some metrics over the residual stream; of several variants, the one recorded first."""
    profiles: Profiles = {}
    for record in records:
        kind = Site.parse(record.site).kind
        plain = record.index is None and "over" not in record.variant and "centred" not in record.variant
        if record.metric not in metrics or record.value is None or kind not in ("embed", "resid", "final") or not plain:
            continue
        points = profiles.setdefault(record.metric, {}).setdefault(record.tokens, [])
        if any(point[0] == record.site for point in points):
            continue
        points.append((record.site, *(_short(x) for x in (record.value, _error(record), record.null))))  # type: ignore[arg-type]
    for policies in profiles.values():
        for points in policies.values():
            points.sort(key=lambda point: Site.parse(point[0]))
    return profiles


def _error(record: Record) -> float | None:
    """Return the error of a record; rounding noise of replicates that all agree is no error."""
    negligible = record.error is not None and record.error < _NOISE * abs(record.value or 0)
    return 0.0 if negligible else record.error


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def write_evidence(evidence: ModelEvidence, folder: Path) -> Path:
    """Write the evidence of a model into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{evidence.name}.json"
    write_text(path, json.dumps(asdict(evidence), ensure_ascii=False, separators=(",", ":")) + "\n")
    return path


def read_evidence(folder: Path) -> list[ModelEvidence]:
    """Return the evidence of all models in a folder, by name.

    Raises:
        InputError: A file is damaged.
    """
    models = []
    for path in sorted(folder.glob("*.json")):
        with parse_errors(path, "delete it and measure the model again"):
            values = read_json(path)
            try:
                models.append(ModelEvidence(**values))
            except TypeError as error:
                raise InputError(f"{path} is not evidence of the atlas ({error}). Measure the model again.") from error
    return models


def committed_evidence() -> Path:
    """Return the folder of the evidence that comes with the library."""
    return Path(str(files(__package__).joinpath("measured")))


def own_evidence() -> Path:
    """Return the folder of a user's own evidence, which commands show next to that of the library."""
    return cache_folder() / "evidence"


def atlas_evidence(folder: Path | None) -> list[ModelEvidence]:
    """Return the evidence of a folder, or that of the library and the user's own, in the order of the registry.

    Raises:
        InputError: There is none.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"No folder {folder}. Measure some models into it: anisoscope atlas run --out {folder}")
    folders = [folder] if folder is not None else [committed_evidence(), own_evidence()]
    models = {model.name: model for each in folders for model in read_evidence(each)}
    if not models:
        raise InputError("The atlas is empty. Measure some models: anisoscope atlas run stories15M MiniLM-L6")
    order = {name: index for index, name in enumerate(registry().models)}
    return sorted(models.values(), key=lambda model: order.get(model.name, len(order)))


def study_path(folder: Path | None) -> Path:
    """Return where the study of rounding is stored, next to the evidence."""
    base = folder if folder is not None else committed_evidence()
    return base.with_name(f"{base.name}-rounded.json")


def reruns_path(folder: Path | None) -> Path:
    """Return where comparisons of models that were measured again are stored, next to the evidence."""
    base = folder if folder is not None else committed_evidence()
    return base.with_name(f"{base.name}-again.json")
