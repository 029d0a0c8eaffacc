"""Models of the user, measured with documents, or groups of documents, as units."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from anisoscope.data.batches import model_batches
from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.hooks import expand, find_layout
from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.measure_weights import vocabulary_matrices
from anisoscope.measurement.request import MODEL_SAMPLE
from anisoscope.models.checkpoints import Checkpoint, checkpoints
from anisoscope.models.open import Opened, open_model
from anisoscope.records import Site
from anisoscope.store.files import replacing
from anisoscope.store.run import Run
from anisoscope.studies.claims.hidden_states import Batches
from anisoscope.studies.claims.measurements import MeasurementKind, OnStatus, load_or_make
from anisoscope.studies.claims.run_sizes import Size
from anisoscope.studies.claims.run_view import Missing, RunView, Units, by_documents
from anisoscope.studies.lab.corpora import EMBEDDED, open_text
from anisoscope.tangent.splits import split_batches

GROUPS = 4  # groups of documents that serve as units
_BATCH = 2  # windows per forward pass: a short text must give enough batches for all groups
_DEPTHS = 7  # depths of a deep model at which slow metrics are computed
_WINDOW = 512  # tokens per block where rows are permuted in blocks
_EMBEDDED_NAME = "Python's help topics"
_ROWS = 10  # rows per dimension: Tyler's matrix fails if more than one row in d lies in one direction
T = TypeVar("T")


@dataclass(frozen=True)
class GivenModel:
    """A `Subject`: a model of the user at one step, and the folder that keeps its measurements."""

    checkpoint: Checkpoint
    folder: Path
    size: Size
    text: str | None
    on_status: OnStatus
    images: Path | None = None
    audio: Path | None = None

    @property
    def name(self) -> str:
        """The hub id with its revision, or the end of a path."""
        source, revision = self.checkpoint.source, self.checkpoint.revision
        name = "/".join(Path(source).parts[-3:]) if Path(source).exists() else source
        return name if revision is None else f"{name} at {revision}"

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @property
    def window(self) -> int:
        return _WINDOW

    def open(self, *, head: bool = True) -> Opened:
        """Open the model; without its head if only hidden states are needed, because logits are expensive."""
        if self.checkpoint.problem is not None:
            raise InputError(f"Cannot open {self.checkpoint.source}: {self.checkpoint.problem}")
        return open_model(self.checkpoint.source, revision=self.checkpoint.revision, head=head)

    def text_file(self) -> str:
        """Return the text of the user; without one, the default text of the lab, written as a file of documents."""
        if self.text is not None:
            return self.text
        path = self.folder.parents[1] / f"{EMBEDDED}.jsonl"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_text("".join(json.dumps({"text": each}) + "\n" for each in open_text(EMBEDDED)))
        return str(path)

    def measure(self, kind: MeasurementKind, half: int | None = None) -> Units:
        """Measure with blocks of documents as units, or groups of documents if the kind is `grouped`.

        Args:
            kind: What to measure.
            half: 0 or 1 for one half of the documents; None for all.
        """
        if kind.grouped:
            return Units(tuple(RunView.of(run.records()) for run in self._by_group(kind)), "groups of documents")
        units = by_documents(self.run(kind, half))
        return replace(units, unit="blocks of rows") if kind.weights else units

    def run(self, kind: MeasurementKind, half: int | None = None) -> Run:
        """Return the run of a measurement."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"
        return load_or_make(self.folder / name, lambda folder: self._measured(kind, folder, half))

    def _by_group(self, kind: MeasurementKind) -> list[Run]:
        opened = self.open(head=False)
        batches = self.batches(opened)
        rows = _ROWS * width_of(opened.model)
        groups = groups_of(batches)
        fewest = min(sum(int(batch.counts.sum()) for batch in group) for group in groups)
        if fewest < rows:
            raise Missing(
                f"Cannot measure {kind.name} of {self.name}: a group of documents has {fewest:,} tokens, but "
                f"{rows:,} are needed ({_ROWS} per dimension). Give a longer text."
            )
        layout = find_layout(opened.model, first_item(batches[0], device_of(opened.model)))
        sites = [str(site) for site in thinned(expand(layout, list(kind.sites)))]

        def make(number: int, group: list[Batch], folder: Path) -> Run:
            self.on_status(f"{kind.name} of {self.name}, group {number + 1} of {GROUPS}")
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": sites, "errors": False}
            return measure(opened, group, sample=rows, out=folder, **options)

        folders = [self.folder / f"{kind.name}-{number}" for number in range(GROUPS)]
        return [load_or_make(folder, partial(make, number, groups[number])) for number, folder in enumerate(folders)]

    def per_unit(self, compute: Callable[[nn.Module, Batches, int], T]) -> list[T]:
        """Call compute(model, batches, number) for every group of documents."""
        opened = self.open()
        return [compute(opened.model, group, number) for number, group in enumerate(groups_of(self.batches(opened)))]

    def example(self) -> tuple[nn.Module, Batches, int]:
        """Return the model, batches that hold enough rows, and the number of rows that a measurement samples."""
        opened = self.open()
        batches = self.batches(opened)
        tokens = accumulate(int(batch.counts.sum()) for batch in batches)
        enough = next((count for count, total in enumerate(tokens, 1) if total >= MODEL_SAMPLE), len(batches))
        return opened.model, batches[:enough], MODEL_SAMPLE

    def output_matrix(self) -> Tensor:
        """Return the output vocabulary matrix (tokens, d)."""
        return list(vocabulary_matrices(self.open().model).values())[-1].cpu()

    def batches(self, opened: Opened) -> list[Batch]:
        """Return the text as batches of the model's inputs."""
        return list(model_batches(opened, self.text_file(), tokens=self.size.tokens, batch=_BATCH))

    def halves(self, opened: Opened) -> tuple[list[Batch], list[Batch]]:
        """Return the text in two halves that share no document."""
        return split_batches(self.batches(opened))

    def _measured(self, kind: MeasurementKind, folder: Path, half: int | None) -> Run:
        self.on_status(f"{kind.name} of {self.name}")
        opened = self.open(head=kind.weights)
        options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "out": folder}
        if kind.weights:
            return measure(opened, weights=True, **options)
        if half is not None:
            return measure(opened, self.halves(opened)[half], **options)
        if kind.spread and opened.modality == "text":
            options["batch_tokens"] = self.size.batch_tokens
        return measure(opened, tokens=self.size.tokens, **self.data(opened), **options)

    def data(self, opened: Opened) -> dict[str, Any]:
        """Return the data that the model is measured on, as keywords of `measure`."""
        if opened.modality == "text":
            return {"text": self.text_file()}
        name, path = ("audio", self.audio) if opened.modality == "audio" else ("images", self.images)
        if path is None:
            raise Missing(f"{self.name} needs {opened.modality} data: give --{name}.")
        return {name: path}

    @cached_property
    def info(self) -> dict[str, Any]:
        """Facts about the model."""
        return self.open().info

    @property
    def decoder(self) -> bool:
        """Whether the model is causal; an encoder sees both sides."""
        if "lab" in self.info:
            return bool(self.info["lab"]["causal"])
        return any(name in str(self.info["architecture"]) for name in ("CausalLM", "LMHead"))


def thinned(sites: Sequence[Site]) -> list[Site]:
    """Return at most seven depths of a deep model, evenly spaced, including both ends.

    The state before the final norm is kept if it was in the list: profiles drop it in favour of the state after.
    """
    states = sorted(sites)
    before = states[-2:-1] if states[-1].kind == "final" else []
    depths = [site for site in states if site not in before]
    if len(depths) <= _DEPTHS:
        return states
    chosen = [round(number * (len(depths) - 1) / (_DEPTHS - 1)) for number in range(_DEPTHS)]
    return sorted([*(depths[index] for index in chosen), *before])


def width_of(model: nn.Module) -> int:
    """Return d, the width of the rows of the vocabulary matrices."""
    return next(iter(vocabulary_matrices(model).values())).shape[1]


def groups_of(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Split batches into four consecutive groups, the units of metrics without a jackknife.

    Neighbouring groups share at most the document at their border.

    Raises:
        Missing: There are fewer than four batches.
    """
    if len(batches) < GROUPS:
        raise Missing(f"The text fills {len(batches)} batches, but {GROUPS} are needed. Give a longer text.")
    ends = [len(batches) * number // GROUPS for number in range(GROUPS + 1)]
    return [list(batches[start:end]) for start, end in pairwise(ends)]


def describe_models(models: Sequence[GivenModel]) -> str:
    """Describe models of the user and the text that they are measured on."""
    names = ", ".join(model.name for model in models)
    return f"{names} on {models[0].text or _EMBEDDED_NAME}, {models[0].size.tokens:,} tokens at most"


def open_series(
    sources: Sequence[str], revisions: str | None, folder: Path, template: dict[str, Any]
) -> tuple[tuple[GivenModel, ...], ...]:
    """Find the checkpoints of each model of the user, in the order of training.

    Args:
        sources: Folders, hub ids or files with a list of them.
        revisions: Revisions of each model, such as `step*`.
        folder: Where measurements are kept.
        template: The other fields of `GivenModel`.
    """
    series = []
    for source in sources:
        home = folder / _file_name(source)
        found = checkpoints(source, revisions)
        series.append(tuple(GivenModel(c, home / f"{c.step}-{_file_name(c.label)}", **template) for c in found))
    return tuple(series)


def _file_name(label: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in label)[-60:]
