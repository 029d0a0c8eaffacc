"""The run of one model in a sweep: what is left to do, what is done, and how answers become records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.request import Request
from anisoscope.measurement.run_output import discard_run, require_same_settings
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import contents, is_cached, is_remote
from anisoscope.store.run import Run
from anisoscope.sweep import series
from anisoscope.sweep.jobs import Answer, Compare, Job, Measure
from anisoscope.sweep.ledger import LEDGER, Ledger
from anisoscope.sweep.series import SeriesProblem
from anisoscope.sweep.tasks import Model, Task, content_key, settings_of
from anisoscope.sweep.trajectory import PREVIOUS, cards, load_kept, save_kept

_KEPT = "paired"
_PARTS = (_KEPT, LEDGER)  # of the run's folder, besides the files of every run


@dataclass(frozen=True)
class Comparison:
    """A step to be compared with another; `against` is None for the reference."""

    step: int
    other: int
    against: str | None
    key: str


Entry = Task | Comparison  # waits in the queue; small, however large the job that is made of it


@dataclass
class ModelRun:
    """One model's run while a sweep writes it."""

    model: str
    run: Run
    ledger: Ledger
    request: Request
    tasks: dict[int, Task]  # by step, in order
    reference: int
    forget: frozenset[int]  # steps whose download is removed once they are measured
    findings: list[SeriesProblem]
    failed: dict[str, str] = field(default_factory=dict)
    _queued: set[str] = field(default_factory=set)  # keys of comparisons that are waiting or running

    # --- what is left to do ----------------------------------------------------------------------------------------

    def todo(self) -> list[Entry]:
        """Return what is left to do, the reference step first: everything is compared with it."""
        steps = sorted(self.tasks, key=lambda step: (step != self.reference, step))
        entries = self._left_comparisons(steps)
        for step in steps:
            task = self.tasks[step]
            if task.key not in self.ledger.done:
                entries.append(task)
        return entries

    @property
    def skipped(self) -> int:
        """How many steps were measured earlier."""
        return sum(task.key in self.ledger.done for task in self.tasks.values())

    def job(self, entry: Entry, upcoming: Checkpoint | None) -> Job:
        """Return the job of an entry; called when a worker is free, since it loads what the job needs."""
        if isinstance(entry, Comparison):
            now, then = (load_kept(self._kept(step)) for step in (entry.step, entry.other))
            return Compare(entry.step, now, then, entry.against)
        return Measure(entry, self.request, upcoming, forget=entry.checkpoint.step in self.forget)

    # --- what has been done ---------------------------------------------------------------------------------------

    def write(self, entry: Entry, answer: Answer) -> list[Entry]:
        """Write an answer into the run; return entries that can be done now."""
        if isinstance(entry, Comparison):
            self._append(entry.step, answer)
            self.ledger.add(entry.key, compared=[entry.step, entry.other], seconds=round(answer.seconds, 3))
            self._drop_kept()
            return []
        self._write_step(entry, answer)
        self._drop_kept()
        return self._comparisons(entry.checkpoint.step)

    def fail(self, entry: Entry, reason: str) -> None:
        """Record a final failure."""
        self.failed[describe(entry)] = reason

    def finish(self) -> None:
        """Write what is known only at the end: steps out of order, failures."""
        self.findings += series.out_of_order(self.ledger.sketches())
        done = all(task.key in self.ledger.done for task in self.tasks.values())
        self.run.update_info(
            integrity=[finding.text for finding in self.findings], failed=self.failed, complete=done and not self.failed
        )

    def _write_step(self, task: Task, answer: Answer) -> None:
        step = task.checkpoint.step
        digest = answer.about["model"]["digest"]
        facts = {"step": step, "label": task.checkpoint.label, "digest": digest, "seconds": round(answer.seconds, 3)}
        twin = self._same_weights(task, digest)
        if twin is not None:
            self.findings.append(series.copied(task.checkpoint, twin))
            self.ledger.add(task.key, **facts, copy_of=twin.step)
            return
        self._append(step, answer)
        save_kept(self._kept(step), answer.kept)
        about = {name: value for name, value in answer.about.items() if name != "not_finite"}
        about["metrics"] = {**about.get("metrics", {}), **cards()}
        revision, commit = task.checkpoint.revision, answer.about["model"].get("commit")
        known = {"label": task.checkpoint.label, "revision": revision, "commit": commit, "digest": digest}
        if "not_finite" in answer.about:
            known["not_finite"] = answer.about["not_finite"]
            self.findings.append(series.not_finite(task.checkpoint, known["not_finite"]))
        self.run.update_info(**about, checkpoints={str(step): known})
        self.ledger.add(task.key, **facts, worker=answer.worker, sketch=answer.sketch)

    def _same_weights(self, task: Task, digest: str) -> Checkpoint | None:
        """Another step with the same weights, which a hub shows only after the download."""
        for step, other in self.tasks.items():
            facts = self.ledger.done.get(other.key, {})
            if step != task.checkpoint.step and facts.get("digest") == digest and "copy_of" not in facts:
                return other.checkpoint
        return None

    def _append(self, step: int, answer: Answer) -> None:
        records = [replace(m.record, step=step, run="") for m in answer.measured]
        self.run.append(records, [m.replicates or None for m in answer.measured])

    # --- comparisons between steps --------------------------------------------------------------------------------

    def _comparisons(self, step: int) -> list[Entry]:
        """The comparisons of this step that can be made now."""
        entries: list[Entry] = []
        for each in self._involving(step):
            new = each.key not in self.ledger.done and each.key not in self._queued
            if new and self._is_kept(each.step) and self._is_kept(each.other):
                self._queued.add(each.key)
                entries.append(each)
        return entries

    def _left_comparisons(self, steps: Sequence[int]) -> list[Entry]:
        """The comparisons that an interruption prevented, in the order in which they would have been made.

        Each was possible once the later of its two steps was measured; of those, the last came first.
        """
        left = {entry.key for step in steps for entry in self._comparisons(step) if isinstance(entry, Comparison)}
        entries: list[Entry] = []
        for index, step in enumerate(steps):
            known = steps[: index + 1]
            involved = [each for each in self._involving(step) if each.step in known and each.other in known]
            entries += [each for each in reversed(involved) if each.key in left]
        return entries

    def _involving(self, step: int) -> Iterator[Comparison]:
        steps = [each for each, task in self.tasks.items() if "copy_of" not in self.ledger.done.get(task.key, {})]
        if step not in steps:
            return
        index = steps.index(step)
        yield self._comparison(step, self.reference, None)
        if step == self.reference:
            yield from (self._comparison(other, step, None) for other in steps if other != step)
        if index:
            yield self._comparison(step, steps[index - 1], PREVIOUS)
        if index + 1 < len(steps):
            yield self._comparison(steps[index + 1], step, PREVIOUS)

    def _comparison(self, step: int, other: int, against: str | None) -> Comparison:
        key = f"{self.tasks[step].key}:{self.tasks[other].key}:{against or 'reference'}"
        return Comparison(step, other, against, key)

    def _is_kept(self, step: int) -> bool:
        """Whether the rows of a step are stored and belong to its current weights."""
        return self.tasks[step].key in self.ledger.done and self._kept(step).is_file()

    def _kept(self, step: int) -> Path:
        return self.run.path / _KEPT / f"{step}.safetensors"

    def _drop_kept(self) -> None:
        """Delete rows that nothing will be compared with; a longer series may need the reference and the last step."""
        stay = {self.reference, next(reversed(self.tasks))}
        for step in self.tasks:
            file = self._kept(step)
            if step in stay or not file.is_file():
                continue
            if all(each.key in self.ledger.done for each in self._involving(step)):
                file.unlink()


def describe(entry: Entry) -> str:
    """Name an entry of the queue as a person would."""
    if isinstance(entry, Comparison):
        return f"step {entry.step} against step {entry.other}"
    return entry.checkpoint.label


@dataclass(frozen=True)
class RunOptions:
    """What the runs of a sweep share besides the request."""

    reference: int | None = None  # the step that drift is measured from
    keep_downloads: bool = False
    command: str | None = None


def open_model_run(
    model: Model, folder: Path, request: Request, data: str, *, seed: int, options: RunOptions
) -> ModelRun:
    """Create or resume the run of a model; problems of its checkpoints are found first."""
    named = contents(model.checkpoints)
    findings = [*series.broken(model.checkpoints), *series.repeated(model.checkpoints, named)]
    bad = [finding.left_out for finding in findings]
    pairs = zip(model.checkpoints, named, strict=True)
    usable = [(checkpoint, name) for checkpoint, name in pairs if name is not None and checkpoint not in bad]
    if not usable:
        raise InputError(f"{model.name} has no checkpoint to measure: {'; '.join(f.text for f in findings)}")
    findings += [*series.gaps([c for c, _ in usable]), *series.misnumbered([c for c, _ in usable])]
    tasks = {c.step: Task(c, seed, content_key(name, c, request, data, seed)) for c, name in usable}
    settings = {"data": data, "seed": seed, **settings_of(request)}
    info = {"kind": "sweep", "source": model.name, "seed": seed, "complete": False, "settings": settings}
    if request.output.overwrite:
        discard_run(folder, *_PARTS)
    if (folder / "run.json").is_file():
        require_same_settings(folder, settings)
    run = Run.create(folder, info, command=options.command, resume=True)
    try:
        ledger = Ledger(run.path)
        findings += _earlier_problems(run, ledger, tasks)
        chosen = _reference(run, tasks, options.reference, model.name)
        run.update_info(reference=chosen, integrity=[finding.text for finding in findings])
        downloads = [c for c, _ in usable if is_remote(c.source) and not is_cached(c.source, c.revision)]
        forget = frozenset(c.step for c in downloads if not options.keep_downloads)
        return ModelRun(model.name, run, ledger, request, tasks, chosen, forget, findings)
    except BaseException:
        run.close()
        raise


def _earlier_problems(run: Run, ledger: Ledger, tasks: Mapping[int, Task]) -> list[SeriesProblem]:
    """Problems that were found when steps were measured earlier."""
    about = run.info.get("checkpoints", {})
    problems: list[SeriesProblem] = []
    for step, task in tasks.items():
        facts = ledger.done.get(task.key)
        if facts is None:
            continue
        if facts.get("copy_of") in tasks:
            problems.append(series.copied(task.checkpoint, tasks[facts["copy_of"]].checkpoint))
        elif "not_finite" in about.get(str(step), {}):
            problems.append(series.not_finite(task.checkpoint, about[str(step)]["not_finite"]))
    return problems


def _reference(run: Run, tasks: Mapping[int, Task], requested: int | None, name: str) -> int:
    """The step that drift is measured from: as requested, as before, or the first."""
    before = run.info.get("reference")
    usual = before if isinstance(before, int) and before in tasks else min(tasks)
    chosen = usual if requested is None else requested
    if chosen not in tasks:
        raise InputError(f"{name} has no step {chosen} to measure drift from; it has {', '.join(map(str, tasks))}")
    if before is not None and before != chosen:
        raise StoreError(
            f"{run.path} measures drift from step {before}, not {chosen}. Choose another folder, or use --overwrite"
        )
    return chosen
