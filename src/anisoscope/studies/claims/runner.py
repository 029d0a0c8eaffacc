"""Run claims: evidence is gathered once and kept; verdicts are judged from it each time and stored in the run."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anisoscope import __version__
from anisoscope.errors import AnisoscopeError, InputError, StoreError, unknown
from anisoscope.measurement.run_output import discard_run, open_run, require_same_settings
from anisoscope.store.files import parse_errors
from anisoscope.store.run import Run
from anisoscope.studies.claims import (
    bernas2026,
    godey2024,
    later_papers,
    machina2024,
    open_questions,
    razzhigaev2023,
)
from anisoscope.studies.claims.background_training import BackgroundTraining, spare_processes
from anisoscope.studies.claims.claim import LAB, MODEL, Claim, Evidence, Verdict, unjudged
from anisoscope.studies.claims.estimate import FEWEST
from anisoscope.studies.claims.figure_cards import cards_of
from anisoscope.studies.claims.gates import gates_left_out, gates_of_trainings
from anisoscope.studies.claims.given_models import GivenModel, open_series
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.measurements import OnStatus
from anisoscope.studies.claims.run_sizes import SHOWN, SIZES, Size, cells
from anisoscope.studies.claims.subjects import Lab, Subjects
from anisoscope.studies.claims.task_files import read_tasks, task_settings
from anisoscope.studies.lab.training_run import is_complete

CLAIMS: tuple[Claim, ...] = (
    *bernas2026.CLAIMS,
    *razzhigaev2023.CLAIMS,
    *godey2024.CLAIMS,
    *machina2024.CLAIMS,
    *later_papers.CLAIMS,
    *open_questions.CLAIMS,
)
_EVIDENCE, _LAB, _MODELS = "evidence", "lab", "models"
_PARTS = (_EVIDENCE, _LAB, _MODELS, "claims.html")  # what a run of claims holds besides its records


def find_claims(ids: Sequence[str]) -> list[Claim]:
    """Return the claims with these ids, in the order of the papers; all claims if `ids` is empty.

    Raises:
        InputError: An id is unknown.
    """
    known = {claim.id: claim for claim in CLAIMS}
    wanted = [each.upper() for each in ids]
    for each in wanted:
        if each not in known:
            raise unknown("claim", each, known)
    return [claim for claim in CLAIMS if claim.id in wanted] if wanted else list(CLAIMS)


def find_size(name: str, seeds: int | None = None) -> Size:
    """Return the size with this name, with another number of seeds if one is given."""
    if name not in SIZES:
        raise unknown("size", name, SIZES)
    return SIZES[name].with_seeds(seeds)


def cost(claims: Sequence[Claim], size: Size) -> float:
    """Estimate the minutes of one core that some claims take together without earlier results; they share trainings."""
    training, measuring = _work(claims, size)
    return training + measuring


def time_to_wait(claims: Sequence[Claim], size: Size, out: str | Path) -> float:
    """Estimate the minutes of wall-clock time: trainings use all cores, measurements use this process only.

    Trainings that are complete in the run folder `out` take no time.
    """
    training, measuring = _work(claims, size, Path(out) / _LAB)
    return max(measuring, (training + measuring) / (1 + _processes(training)))


def _work(claims: Sequence[Claim], size: Size, lab: Path | None = None) -> tuple[float, float]:
    """Minutes of one core for the trainings that are not complete in the folder `lab`, and for measurements."""
    names = {cell for claim in claims if "lab" in claim.ways for cell in claim.cells}
    seeds = {name: min(FEWEST, size.seeds) if name in SHOWN else size.seeds for name in names}
    switches = cells(size)
    steps = sum(
        int(switches[name].get("steps", size.steps))
        for name in names
        for seed in range(seeds[name])
        if lab is None or not is_complete(lab / f"{name}-seed-{seed}")
    )
    relative = size.steps * size.seconds_per_step / (SIZES["small"].steps * SIZES["small"].seconds_per_step)
    return steps * size.seconds_per_step / 60, size.seeds * sum(claim.seconds for claim in claims) * relative / 60


def _processes(minutes: float) -> int:
    """The number of other processes that train: none if the work takes less time than starting them."""
    return spare_processes() if minutes > 1 else 0


@dataclass(frozen=True)
class ClaimsRequest:
    """What a run of claims was asked to do.

    Attributes:
        size: Size of the lab trainings and measurements.
        models: Models of the user; none to use the lab.
        revisions: Checkpoints of these models, such as `step*`.
        text: Text for the models, or for the lab if there are none.
        images: Folder of images.
        audio: Folder of recordings.
        tasks: Files of downstream tasks, which P1 and N6 judge instead of those of the package.
    """

    size: Size
    models: tuple[str, ...] = ()
    revisions: str | None = None
    text: str | None = None
    images: Path | None = None
    audio: Path | None = None
    tasks: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the request as it is stored in the run."""
        return {
            "size": self.size.name,
            "seeds": self.size.seeds,
            "models": list(self.models) or None,
            "revisions": self.revisions,
            "text": self.text,
            "images": None if self.images is None else str(self.images),
            "audio": None if self.audio is None else str(self.audio),
            **({} if not self.tasks else {"tasks": task_settings(self.tasks)}),
        }


def run_claims(
    claims: Sequence[Claim],
    out: str | Path,
    request: ClaimsRequest,
    *,
    on_status: OnStatus | None = None,
    command: str | None = None,
    overwrite: bool = False,
) -> Iterator[tuple[Claim, tuple[Verdict, Verdict]]]:
    """Judge claims one after another; the run `out` always holds all verdicts so far.

    The same request with the same `out` resumes: existing evidence, trainings and measurements are reused, also for
    other claims. A claim without evidence stays inconclusive, with the reason.

    Args:
        claims: What to judge.
        out: The run folder.
        request: Size, models and data.
        on_status: Called with a short text about the current work.
        command: The command line, for the run's information.
        overwrite: Discard the run in `out` and start again.

    Yields:
        Each claim with its two verdicts: as published, and under the strongest control.

    Raises:
        InputError: A task file is no task.
        StoreError: The folder holds a run of another request; the message names what differs.
    """
    folder = Path(out)
    tasks = read_tasks(request.tasks)  # first, since a bad file must not discard a run
    if overwrite:
        discard_run(folder, *_PARTS)
    _require_same_request(folder, request)
    text = None if request.models else request.text
    lab = Lab(folder / _LAB, request.size, request.size.seeds, on_status or (lambda _: None), text)
    given = _given_models(request, request.models, request.revisions, lab, folder)
    subjects = Subjects(request.size, lab, given, tasks=tasks)
    machine = f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores"
    info = {"kind": "claims", "settings": request.to_json(), "versions": code_versions(), "machine": machine}
    missing = [c for c in claims if kept_evidence(folder, c.id) is None and _trains(c, subjects, request)]
    processes = _processes(_work(missing, request.size)[0])
    names = list(dict.fromkeys(cell for claim in missing for cell in claim.cells))
    with open_run(folder, info, command=command) as run, lab.training_in_background(names, processes):
        minutes = _clock(run, lab.background)
        for claim in claims:
            try:
                verdicts = judge(claim, kept_evidence(folder, claim.id) or _gather(claim, subjects, request, folder))
            except AnisoscopeError as error:
                verdicts = unjudged(claim, str(error))
            publish(run, claim, verdicts)
            run.update_info(minutes=minutes())
            yield claim, verdicts


def _given_models(
    request: ClaimsRequest, models: Sequence[str], revisions: str | None, lab: Lab, folder: Path
) -> tuple[tuple[GivenModel, ...], ...]:
    template = {"size": request.size, "text": request.text, "images": request.images, "audio": request.audio}
    return open_series(models, revisions, folder / _MODELS, {**template, "on_status": lab.on_status})


def _clock(run: Run, background: BackgroundTraining) -> Callable[[], dict[str, float]]:
    """Return a function that gives the minutes of a run so far, with earlier parts of an interrupted run."""
    before = run.info.get("minutes", {"processor": 0.0, "clock": 0.0})
    processor, clock = time.process_time(), time.monotonic()
    return lambda: {
        "processor": before["processor"] + (time.process_time() - processor + background.seconds) / 60,
        "clock": before["clock"] + (time.monotonic() - clock) / 60,
    }


def code_versions() -> dict[str, str]:
    """Return the versions of what computes evidence."""
    import torch

    return {"anisoscope": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _require_same_request(folder: Path, request: ClaimsRequest) -> None:
    """Refuse a folder with another run before anything is opened, which may take long."""
    if (folder / "run.json").is_file():
        require_claims(Run.open(folder))
        require_same_settings(folder, request.to_json())


def require_claims(run: Run) -> None:
    """Refuse a run of something else."""
    if run.info.get("kind") != "claims":
        raise InputError(f"{run.path} is a run, but not of claims. Choose another --out.")


# --- evidence -----------------------------------------------------------------------------------------------------


def _gather(claim: Claim, subjects: Subjects, request: ClaimsRequest, folder: Path) -> Evidence:
    """Gather the evidence of a claim from the best available source, and store it.

    Size paper without models of the user takes the models that the claim is about.
    """
    if request.size.name == "paper" and not request.models:
        given = _given_models(request, claim.sources, claim.revisions, subjects.lab, folder)
        subjects = replace(subjects, given=given)
    way = _way(claim, subjects)
    if way is None:
        raise InputError(f"The claim needs {claim.needs}")
    evidence = _with_gates(claim.ways[way](replace(subjects, way=way)), claim, subjects)
    keep_evidence(folder, claim, evidence)
    return evidence


def keep_evidence(folder: Path, claim: Claim, evidence: Evidence) -> None:
    """Store the evidence of a claim in a run of claims."""
    home = folder / _EVIDENCE / claim.id
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    info = {"kind": "evidence", "claim": claim.id, "metrics": cards_of(evidence.records)}
    with Run.create(home, info) as run:
        run.append(evidence.records)
        run.update_info(evidence=evidence.to_json())  # last, so that incomplete evidence is gathered again


def _with_gates(evidence: Evidence, claim: Claim, subjects: Subjects) -> Evidence:
    """Add what the losses of the trainings say about whether the claim can be tested."""
    if evidence.scale == MODEL:
        return replace(evidence, left_out={**evidence.left_out, **gates_left_out(claim.all_gates)})
    evidence = replace(evidence, smoke_test=subjects.size.smoke_test)
    if evidence.scale != LAB:
        return evidence
    gates = gates_of_trainings(claim.all_gates, subjects.lab, claim.cells)
    return replace(evidence, estimates={**evidence.estimates, **gates})


def _way(claim: Claim, subjects: Subjects) -> str | None:
    return next((way for way in subjects.ways() if way in claim.ways), None)


def _trains(claim: Claim, subjects: Subjects, request: ClaimsRequest) -> bool:
    """Whether the evidence of a claim comes from lab trainings."""
    published = request.size.name == "paper" and not request.models and bool(claim.sources)
    return not published and _way(claim, subjects) == "lab"


def kept_evidence(folder: str | Path, claim: str) -> Evidence | None:
    """Return the stored evidence of a claim; None if there is none."""
    home = Path(folder) / _EVIDENCE / claim
    if not (home / "run.json").is_file():
        return None
    run = Run.open(home)
    values = run.info.get("evidence")
    if values is None:
        return None
    with parse_errors(home / "run.json", f"delete {home}, and the evidence is gathered again", StoreError):
        return Evidence.from_json(values, list(run.records()))


def evidence_run(folder: str | Path, claim: str) -> Run | None:
    """Return the run that holds the records for the figures of a claim; None if there is none."""
    home = Path(folder) / _EVIDENCE / claim
    return Run.open(home) if (home / "run.json").is_file() else None


# --- verdicts -----------------------------------------------------------------------------------------------------


def publish(run: Run, claim: Claim, verdicts: tuple[Verdict, Verdict]) -> None:
    """Store the verdicts in the run and drop earlier ones of the same claim."""
    others = [record for record in run.records() if record.variant.get("claim") != claim.id]
    order = {each.id: index for index, each in enumerate(CLAIMS)}
    records = sorted(
        [*others, *(verdict.to_record() for verdict in verdicts)],
        key=lambda record: order.get(record.variant.get("claim", ""), len(order)),
    )
    run.rewind(0)
    run.append(records)


def last_verdicts(folder: str | Path) -> dict[str, dict[str, str]]:
    """Return the outcomes in a run of claims, by claim and line; empty if the folder does not exist."""
    if not Path(folder).exists():
        return {}
    outcomes: dict[str, dict[str, str]] = {}
    for record in Run.open(folder).records():
        if record.metric == "verdict" and {"claim", "line", "verdict"} <= set(record.variant):
            outcomes.setdefault(record.variant["claim"], {})[record.variant["line"]] = record.variant["verdict"]
    return outcomes
