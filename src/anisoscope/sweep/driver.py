"""Many models and checkpoints: one command, any number of workers, restartable, with the numbers of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.store.files import given_path
from anisoscope.sweep.engines import Engine, Outcome, in_process
from anisoscope.sweep.jobs import Job
from anisoscope.sweep.model_run import Comparison, Entry, ModelRun, Sum, describe, open_model_run
from anisoscope.sweep.tasks import Model, Task, data_digest, is_list, models_of

RETRIES = 2
Saying = Callable[[str], None]


@dataclass(frozen=True)
class Swept:
    """What came of a sweep: its runs, how many steps were measured now and before, what failed, what looks wrong."""

    runs: list[Path]
    measured: int
    skipped: int
    failed: dict[str, str]  # by name, the reason
    findings: list[str]
    seconds: list[float]  # of each step's own work


def sweep(
    source: str | Path,
    *,
    out: str | Path | None = None,
    revisions: str | Iterable[str] | None = None,
    seeds: Sequence[int] = (0,),
    shards: int = 1,
    reference: int | None = None,
    engine: Engine = in_process,
    retries: int = RETRIES,
    keep_downloads: bool = False,
    command: str | None = None,
    saying: Saying | None = None,
    **request: Any,
) -> Swept:
    """Measures every checkpoint of every model that `source` names, and writes one run a model, with its steps.

    `source` is a hub id with `revisions`, a folder of checkpoints, or a list file of models; `request` goes to
    `measure` (text, tokens, sites, metrics, …). `out` is the run, for a list or several `seeds` the folder of
    the runs. `shards` splits the documents of every checkpoint over so many tasks, whose statistics add. Steps that
    the runs hold already are not measured again; what fails is tried `retries` more times, then reported, and the
    rest goes on. `reference` is the step that drift is measured from, the first by default.

    >>> sweep("runs/exp1/checkpoints", text="corpus.txt", out="runs/exp1-geometry")    # doctest: +SKIP
    """
    if not any(request.get(given) for given in ("text", "images", "audio", "weights")):
        raise InputError("nothing to measure: give text, images or audio, or ask for the weights")
    models = models_of(source, revisions)
    base = Path(out) if out is not None else Path("runs") / Path(str(source)).stem
    data = data_digest(request)
    series: list[ModelRun] = []
    refused: dict[str, str] = {}
    try:
        for model in models:
            for seed in seeds:
                folder = _folder(base, model, seed, one=not is_list(given_path(source)), seeds=len(seeds))
                options: dict[str, Any] = {"seed": seed, "shards": shards, "reference": reference}
                options |= {"keep_downloads": keep_downloads, "command": command}
                try:
                    series.append(open_model_run(model, folder, request, data, **options))
                except InputError as error:
                    if len(models) == 1:
                        raise
                    refused[model.name] = str(error)  # one model that cannot be read is no reason to stop
        return _Sweep(series, retries, saying or (lambda _: None), refused).run(engine)
    finally:
        for each in series:
            each.run.close()


@dataclass
class _Sweep:
    """A sweep under way: what waits, what is with the workers, what has come of it."""

    series: list[ModelRun]
    retries: int
    saying: Saying
    failed: dict[str, str]
    waiting: deque[tuple[ModelRun, Entry]] = field(default_factory=deque)
    under_way: dict[int, tuple[ModelRun, Entry]] = field(default_factory=dict)  # by the identity of the job
    tries: dict[str, int] = field(default_factory=dict)  # of what has failed so far
    measured: int = 0
    seconds: list[float] = field(default_factory=list)

    def run(self, engine: Engine) -> Swept:
        skipped = sum(each.skipped for each in self.series)
        for each in self.series:
            self.waiting += ((each, entry) for entry in each.todo())
        self.total = sum(isinstance(entry, Task | Sum) for _, entry in self.waiting)
        for outcome in engine(self.pull):
            self.take(outcome)
        for each in self.series:
            each.finish()
        findings = [f"{each.model}: {finding.text}" for each in self.series for finding in each.findings]
        runs = [each.run.path for each in self.series]
        return Swept(runs, self.measured, skipped, self.failed, findings, self.seconds)

    def pull(self) -> Job | None:
        """The next job, or None while there is none."""
        while self.waiting:
            owner, entry = self.waiting.popleft()
            try:
                job = owner.job(entry, self._upcoming())
            except (AnisoscopeError, OSError) as error:
                self._give_up(owner, entry, str(error))
                continue
            self.under_way[id(job)] = owner, entry
            return job
        return None

    def take(self, outcome: Outcome) -> None:
        """Writes an answer into its run, or sees to it that the job is tried again."""
        owner, entry = self.under_way.pop(id(outcome.job))
        answer, name = outcome.answer, f"{owner.model}, {describe(entry)}"
        if answer.error is not None:
            self.tries[name] = self.tries.get(name, 0) + 1
            if answer.hopeless or self.tries[name] > self.retries:
                self._give_up(owner, entry, answer.error)
            else:
                self.saying(f"{name}: {answer.error}; it is tried again")
                self.waiting.append((owner, entry))
            return
        for more in owner.write(entry, answer):
            # comparisons first: rows that were compared need not be kept
            self.waiting.appendleft((owner, more))
        if not isinstance(entry, Comparison):
            self.measured += isinstance(entry, Sum) or entry.share.of == 1
            self.seconds.append(answer.seconds)
            self.saying(f"{name} measured in {answer.seconds:.1f} s ({len(self.seconds)} of {self.total})")

    def _upcoming(self) -> Checkpoint | None:
        """The checkpoint that is to be fetched while the jobs under way are done: the next that nobody has."""
        return next((entry.checkpoint for _, entry in self.waiting if isinstance(entry, Task)), None)

    def _give_up(self, owner: ModelRun, entry: Entry, reason: str) -> None:
        owner.fail(entry, reason)
        self.failed[f"{owner.model}, {describe(entry)}"] = reason
        self.saying(f"{owner.model}, {describe(entry)} failed: {reason}")


def _folder(base: Path, model: Model, seed: int, *, one: bool, seeds: int) -> Path:
    """Where a model's run lies: `base` itself where there is only one."""
    parts = [] if one else [model.name]
    parts += [f"seed{seed}"] if seeds > 1 else []
    return base / "-".join(parts) if parts else base
