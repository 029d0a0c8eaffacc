"""Put a user's own model into the atlas: the same measurements, without a package and without a check."""

from __future__ import annotations

from pathlib import Path

from anisoscope.errors import InputError
from anisoscope.models.sources import locate
from anisoscope.store.run import Run
from anisoscope.studies.atlas.atlas_registry import TOKENS, cache_folder
from anisoscope.studies.atlas.atlas_runs import (
    METRICS,
    AtlasSubject,
    OnStatus,
    layer_widths,
    rows_at_half_depth,
    run_subjects,
    total_seconds,
)
from anisoscope.studies.atlas.evidence import ModelEvidence, profiles_of
from anisoscope.studies.atlas.untrained_twin import untrained_twin

_MODALITIES = {"text": "your text", "images": "your images", "audio": "your recordings"}


def add_model(
    model: Path,
    data: str,
    source: Path,
    *,
    name: str | None = None,
    kind: str = "",
    tokens: int = TOKENS,
    cache: Path | None = None,
    on_status: OnStatus | None = None,
) -> ModelEvidence:
    """Measure a model and its untrained twin on one input.

    Args:
        model: A folder or a .gguf file.
        data: "text", "images" or "audio".
        source: The input.
        name: Its name in the atlas. Default: that of the folder or file.
        kind: decoder, encoder or another word; claims are judged for the first two.
        tokens: How many tokens to measure.
        cache: Folder for the twin and for runs.
        on_status: Called with what is being done.

    Raises:
        InputError: The model or the input does not exist.
    """
    say = on_status or (lambda _: None)
    located = locate(model)
    if not source.exists():
        raise InputError(f"No input at {source}. Use a file or a folder.")
    path = (located.file or located.folder).resolve()
    name = name or path.stem
    where = (cache or cache_folder()) / "added"
    where.mkdir(parents=True, exist_ok=True)
    folders = {"trained": path, "untrained": untrained_twin(path, out=where / f"{name}-untrained")}
    subjects = {
        state: AtlasSubject(folder, str(source.resolve()), data, tokens, None, where / f"{name}-{state}-{source.stem}")
        for state, folder in folders.items()
    }
    costs = {}
    for state, cost in run_subjects(subjects):
        costs[state] = cost
        say(f"{name}: {state} measured")
    runs = {state: Run.open(subject.out) for state, subject in subjects.items()}
    about, widths = runs["trained"].info["model"], layer_widths(runs["trained"])
    entry = {"describes": source.name, "tokens": rows_at_half_depth(runs["trained"])}
    entry |= {state: profiles_of(run.records(), METRICS) for state, run in runs.items()}
    return ModelEvidence(
        name=name,
        family=str(about.get("model_type") or about["architecture"]),
        kind=kind or "yours",
        modality=_MODALITIES[data],
        precision=str(about.get("quantization") or about.get("stored_dtype") or about.get("dtype")),
        licence="",
        packages=[],
        note="Added by you; not checked.",
        parameters=int(about["parameters"]),
        width=widths.pop() if len(widths) == 1 else 0,
        check="none",
        seconds=total_seconds(costs.values()),
        memory=round(max(cost["peak"] - cost["weights"] for cost in costs.values()) / 2**20),
        inputs={source.stem: entry},
    )
