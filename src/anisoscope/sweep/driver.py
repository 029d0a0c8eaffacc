"""Many models and checkpoints: one call, any number of workers, resumable, with the numbers of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.measurement.request import Request, accepts, shared_options
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.store.files import user_path
from anisoscope.sweep.engines import Engine, Outcome, in_process
from anisoscope.sweep.jobs import Job
from anisoscope.sweep.model_run import Comparison, Entry, ModelRun, RunOptions, describe, open_model_run
from anisoscope.sweep.tasks import Model, Task, data_digest, is_list, models_of

RETRIES = 2
OnStatus = Callable[[str], None]


@dataclass(frozen=True)
class Swept:
    """The outcome of a sweep: its runs, how many steps were measured now and before, failures and problems."""

    runs: list[Path]
    measured: int
    skipped: int
    failed: dict[str, str]  # by name, the reason
    findings: list[str]
    seconds: list[float]  # of each step's own work


@accepts(*shared_options())
def sweep(
    source: str | Path,
    *,
    out: str | Path | None = None,
    revisions: str | Iterable[str] | None = None,
    seeds: Sequence[int] = (0,),
    reference: int | None = None,
    engine: Engine = in_process,
    retries: int = RETRIES,
    keep_downloads: bool = False,
    command: str | None = None,
    on_status: OnStatus | None = None,
    **options: Any,
) -> Swept:
    """Measure every checkpoint of every model that `source` names, and write one run per model with its steps.

    Args:
        source: A hub id with `revisions`, a folder of checkpoints, or a list file of models.
        out: The run; for a list or several `seeds`, the folder of the runs. Default: runs/NAME.
        revisions: Revisions or checkpoints, by name or pattern.
        seeds: Seeds of the sample; one run each.
        reference: The step that drift is measured from. Default: the first.
        engine: Where tasks run; see `anisoscope.sweep.engines`.
        retries: How often a failed task is tried again before it is reported; the rest of the sweep continues.
        keep_downloads: Keep checkpoints that were downloaded for this sweep.
        command: The command line, for the runs' own record.
        on_status: Called with what is being done.
        {options}

    Returns:
        The runs, and what failed. Steps that the runs hold already are not measured again.

    >>> sweep("runs/exp1/checkpoints", text="corpus.txt", out="runs/exp1-geometry")    # doctest: +SKIP
    """
    request = Request.of(**options)
    if request.source() is None and not request.sites.weights:
        raise InputError("nothing to measure: give text, images or audio, or set weights=True")
    models = models_of(source, revisions)
    base = Path(out) if out is not None else Path("runs") / Path(str(source)).stem
    data = data_digest(request)
    shared = RunOptions(reference, keep_downloads, command)
    series: list[ModelRun] = []
    refused: dict[str, str] = {}
    try:
        for model in models:
            for seed in seeds:
                folder = _folder(base, model, seed, one=not is_list(user_path(source)), seeds=len(seeds))
                try:
                    series.append(open_model_run(model, folder, request, data, seed=seed, options=shared))
                except InputError as error:
                    if len(models) == 1:
                        raise
                    refused[model.name] = str(error)  # one model that cannot be read is no reason to stop
        return _Sweep(series, retries, on_status or (lambda _: None), refused).run(engine)
    finally:
        for each in series:
            each.run.close()


@dataclass
class _Sweep:
    """A running sweep: what waits, what the workers have, and the outcome so far."""

    series: list[ModelRun]
    retries: int
    on_status: OnStatus
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
        self.total = sum(isinstance(entry, Task) for _, entry in self.waiting)
        for outcome in engine(self.pull):
            self.take(outcome)
        for each in self.series:
            each.finish()
        findings = [f"{each.model}: {finding.text}" for each in self.series for finding in each.findings]
        runs = [each.run.path for each in self.series]
        return Swept(runs, self.measured, skipped, self.failed, findings, self.seconds)

    def pull(self) -> Job | None:
        """Return the next job, or None if none is waiting."""
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
        """Write an answer into its run, or queue a failed job again."""
        owner, entry = self.under_way.pop(id(outcome.job))
        answer, name = outcome.answer, f"{owner.model}, {describe(entry)}"
        if answer.error is not None:
            self.tries[name] = self.tries.get(name, 0) + 1
            if answer.hopeless or self.tries[name] > self.retries:
                self._give_up(owner, entry, answer.error)
            else:
                self.on_status(f"{name}: {answer.error}; trying again")
                self.waiting.append((owner, entry))
            return
        for more in owner.write(entry, answer):
            # comparisons first: rows that were compared need not be kept
            self.waiting.appendleft((owner, more))
        if not isinstance(entry, Comparison):
            self.measured += 1
            self.seconds.append(answer.seconds)
            self.on_status(f"{name} measured in {answer.seconds:.1f} s ({len(self.seconds)} of {self.total})")

    def _upcoming(self) -> Checkpoint | None:
        """The next checkpoint, to be downloaded while other jobs run."""
        return next((entry.checkpoint for _, entry in self.waiting if isinstance(entry, Task)), None)

    def _give_up(self, owner: ModelRun, entry: Entry, reason: str) -> None:
        owner.fail(entry, reason)
        self.failed[f"{owner.model}, {describe(entry)}"] = reason
        self.on_status(f"{owner.model}, {describe(entry)} failed: {reason}")


def _folder(base: Path, model: Model, seed: int, *, one: bool, seeds: int) -> Path:
    """The folder of a model's run: `base` itself if there is only one."""
    parts = [] if one else [model.name]
    parts += [f"seed{seed}"] if seeds > 1 else []
    return base / "-".join(parts) if parts else base
