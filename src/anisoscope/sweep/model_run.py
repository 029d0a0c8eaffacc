"""The run of one model in a sweep: what is to be done, what has been, and how answers become records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.document_shares import Share
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import contents, is_cached, is_remote
from anisoscope.store.run import Run
from anisoscope.sweep import series
from anisoscope.sweep.jobs import Add, Answer, Compare, Job, Measure
from anisoscope.sweep.ledger import Ledger
from anisoscope.sweep.series import SeriesProblem
from anisoscope.sweep.tasks import Model, Request, Task, content_key, policy_of
from anisoscope.sweep.trajectory import PREVIOUS, cards, load_kept, save_kept

_KEPT, _SHARES = "paired", "shares"


@dataclass(frozen=True)
class Comparison:
    """A step to be compared with another; `against` is None for the reference."""

    step: int
    other: int
    against: str | None
    key: str


@dataclass(frozen=True)
class Sum:
    """A task whose shares have all been counted."""

    task: Task


Entry = Task | Sum | Comparison  # what waits in the queue: small, whatever the job that is made of it weighs


@dataclass
class ModelRun:
    """One model's run while a sweep writes it."""

    model: str
    run: Run
    ledger: Ledger
    request: Request
    tasks: dict[int, Task]  # whole tasks by step, in order
    reference: int
    shards: int
    forget: frozenset[int]  # steps whose download goes when they are measured
    findings: list[SeriesProblem]
    failed: dict[str, str] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)  # keys of comparisons and sums that are waiting or running

    # --- what is to be done ---------------------------------------------------------------------------------------

    def todo(self) -> list[Entry]:
        """What is not done yet, the reference step first: everything is compared with it."""
        steps = sorted(self.tasks, key=lambda step: (step != self.reference, step))
        entries = self._left_comparisons(steps)
        for step in steps:
            task = self.tasks[step]
            if task.key not in self.ledger.done:
                entries += self._parts(task)
        return entries

    @property
    def skipped(self) -> int:
        """How many steps were measured before."""
        return sum(task.key in self.ledger.done for task in self.tasks.values())

    def job(self, entry: Entry, upcoming: Checkpoint | None) -> Job:
        """The job of an entry, made when a worker is free: what it needs is loaded only then."""
        if isinstance(entry, Comparison):
            now, then = (load_kept(self._kept(step)) for step in (entry.step, entry.other))
            return Compare(entry.step, now, then, entry.against)
        task = entry.task if isinstance(entry, Sum) else entry
        forget = task.share.of == 1 and task.checkpoint.step in self.forget
        if isinstance(entry, Sum):
            folders = tuple(self._share_folder(part) for part in self._shares(task))
            return Add(task, self.request, folders, forget)
        if task.share.of == 1:
            return Measure(task, self.request, upcoming, forget)
        folder = self._share_folder(task)
        folder.parent.mkdir(exist_ok=True)
        return Measure(task, self.request, upcoming, folder=folder)

    def _parts(self, task: Task) -> list[Entry]:
        """A task, or those of its shares that were not counted yet; their sum where none is left."""
        if self.shards == 1:
            return [task]
        missing: list[Entry] = [part for part in self._shares(task) if not self._share_folder(part).is_dir()]
        return missing or self._sum(task)

    def _sum(self, task: Task) -> list[Entry]:
        if task.key in self._asked or not all(self._share_folder(part).is_dir() for part in self._shares(task)):
            return []
        self._asked.add(task.key)
        return [Sum(task)]

    def _shares(self, task: Task) -> list[Task]:
        return [replace(task, share=Share(place, self.shards)) for place in range(self.shards)]

    def _share_folder(self, task: Task) -> Path:
        return self.run.path / _SHARES / f"{task.key}-{task.share.place}-of-{task.share.of}"

    # --- what has been done ---------------------------------------------------------------------------------------

    def write(self, entry: Entry, answer: Answer) -> list[Entry]:
        """Puts an answer into the run; what can be done now that could not before."""
        if isinstance(entry, Comparison):
            self._append(entry.step, answer)
            self.ledger.add(entry.key, compared=[entry.step, entry.other], seconds=round(answer.seconds, 3))
            self._drop_kept()
            return []
        task = entry.task if isinstance(entry, Sum) else entry
        if task.share.of > 1:
            return self._sum(self.tasks[task.checkpoint.step])
        self._write_step(task, answer)
        if isinstance(entry, Sum):
            for part in self._shares(task):
                shutil.rmtree(self._share_folder(part), ignore_errors=True)
        self._drop_kept()
        return self._comparisons(task.checkpoint.step)

    def fail(self, entry: Entry, reason: str) -> None:
        """Notes that something was tried for the last time."""
        self.failed[describe(entry)] = reason

    def finish(self) -> None:
        """What is known only at the end: steps out of order, what failed."""
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
        """Another step whose weights are these: a hub tells only after the download."""
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
        """The comparisons that this step takes part in and that can be made now."""
        found: list[Entry] = []
        for each in self._involving(step):
            new = each.key not in self.ledger.done and each.key not in self._asked
            if new and self._is_kept(each.step) and self._is_kept(each.other):
                self._asked.add(each.key)
                found.append(each)
        return found

    def _left_comparisons(self, steps: Sequence[int]) -> list[Entry]:
        """The comparisons that a kill prevented, in the order in which they would have been made.

        Each was possible once the later of its two steps was measured; of those, the last found came first.
        """
        left = {entry.key for step in steps for entry in self._comparisons(step) if isinstance(entry, Comparison)}
        found: list[Entry] = []
        for place, step in enumerate(steps):
            known = steps[: place + 1]
            involved = [each for each in self._involving(step) if each.step in known and each.other in known]
            found += [each for each in reversed(involved) if each.key in left]
        return found

    def _involving(self, step: int) -> Iterator[Comparison]:
        steps = [each for each, task in self.tasks.items() if "copy_of" not in self.ledger.done.get(task.key, {})]
        if step not in steps:
            return
        place = steps.index(step)
        yield self._comparison(step, self.reference, None)
        if step == self.reference:
            yield from (self._comparison(other, step, None) for other in steps if other != step)
        if place:
            yield self._comparison(step, steps[place - 1], PREVIOUS)
        if place + 1 < len(steps):
            yield self._comparison(steps[place + 1], step, PREVIOUS)

    def _comparison(self, step: int, other: int, against: str | None) -> Comparison:
        key = f"{self.tasks[step].key}:{self.tasks[other].key}:{against or 'reference'}"
        return Comparison(step, other, against, key)

    def _is_kept(self, step: int) -> bool:
        """Whether the rows of a step are there and are those of its weights as they are now."""
        return self.tasks[step].key in self.ledger.done and self._kept(step).is_file()

    def _kept(self, step: int) -> Path:
        return self.run.path / _KEPT / f"{step}.safetensors"

    def _drop_kept(self) -> None:
        """Removes kept rows that nothing will be compared with; a longer series may need the reference and the last."""
        stay = {self.reference, next(reversed(self.tasks))}
        for step in self.tasks:
            file = self._kept(step)
            if step in stay or not file.is_file():
                continue
            if all(each.key in self.ledger.done for each in self._involving(step)):
                file.unlink()


def describe(entry: Entry) -> str:
    """How a person calls what waits in the queue."""
    if isinstance(entry, Comparison):
        return f"step {entry.step} against step {entry.other}"
    return entry.name if isinstance(entry, Task) else f"the sum of {entry.task.name}"


def open_model_run(
    model: Model,
    folder: Path,
    request: Request,
    data: str,
    *,
    seed: int,
    shards: int,
    reference: int | None,
    keep_downloads: bool,
    command: str | None,
) -> ModelRun:
    """The run of a model, new or to be gone on with; what is wrong with its checkpoints is found first."""
    named = contents(model.checkpoints)
    findings = [*series.broken(model.checkpoints), *series.repeated(model.checkpoints, named)]
    bad = [finding.left_out for finding in findings]
    pairs = zip(model.checkpoints, named, strict=True)
    found = [(checkpoint, name) for checkpoint, name in pairs if name is not None and checkpoint not in bad]
    if not found:
        raise InputError(f"{model.name} has no checkpoint to measure: {'; '.join(f.text for f in findings)}")
    findings += [*series.gaps([c for c, _ in found]), *series.misnumbered([c for c, _ in found])]
    tasks = {c.step: Task(c, seed, content_key(name, c, request, data, seed)) for c, name in found}
    settings = {"data": data, "policy": policy_of(request), "seed": seed}
    info = {"kind": "sweep", "source": model.name, "seed": seed, "complete": False, "settings": settings}
    _require_same(folder, settings)
    run = Run.create(folder, info, command=command, resume=True)
    try:
        ledger = Ledger(run.path)
        findings += _found_before(run, ledger, tasks)
        chosen = _reference(run, tasks, reference, model.name)
        run.update_info(reference=chosen, integrity=[finding.text for finding in findings])
        downloads = [c for c, _ in found if is_remote(c.source) and not is_cached(c.source, c.revision)]
        forget = frozenset(c.step for c in downloads if not keep_downloads)
        return ModelRun(model.name, run, ledger, request, tasks, chosen, shards, forget, findings)
    except BaseException:
        run.close()
        raise


def _found_before(run: Run, ledger: Ledger, tasks: Mapping[int, Task]) -> list[SeriesProblem]:
    """What measuring has shown of steps that are not measured again."""
    about = run.info.get("checkpoints", {})
    found: list[SeriesProblem] = []
    for step, task in tasks.items():
        facts = ledger.done.get(task.key)
        if facts is None:
            continue
        if facts.get("copy_of") in tasks:
            found.append(series.copied(task.checkpoint, tasks[facts["copy_of"]].checkpoint))
        elif "not_finite" in about.get(str(step), {}):
            found.append(series.not_finite(task.checkpoint, about[str(step)]["not_finite"]))
    return found


def _reference(run: Run, tasks: Mapping[int, Task], asked: int | None, name: str) -> int:
    """The step that drift is measured from: as asked, as before, or the first."""
    before = run.info.get("reference")
    usual = before if isinstance(before, int) and before in tasks else min(tasks)
    chosen = usual if asked is None else asked
    if chosen not in tasks:
        raise InputError(f"{name} has no step {chosen} to measure drift from; it has {', '.join(map(str, tasks))}")
    if before is not None and before != chosen:
        raise StoreError(f"{run.path} measures drift from step {before}; choose another --out for step {chosen}")
    return chosen


def _require_same(folder: Path, settings: Mapping[str, Any]) -> None:
    """A run is gone on with only by the same request on the same data."""
    if not (folder / "run.json").is_file():
        return
    before = Run.open(folder).info.get("settings")
    if before != settings:
        known = before if isinstance(before, dict) else {}
        policy: Mapping[str, Any] = settings["policy"]
        old = known.get("policy") if isinstance(known.get("policy"), dict) else {}
        differs = [name for name in ("data", "seed") if known.get(name) != settings[name]]
        differs += [name for name in policy if (old or {}).get(name) != policy[name]]
        raise StoreError(
            f"{folder} holds another measurement (different: {', '.join(differs) or 'its kind'}); "
            "choose another --out, or delete it"
        )
