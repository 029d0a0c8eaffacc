"""Running claims: evidence is gathered once and kept, verdicts are judged anew from it and go into the run."""

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
from anisoscope.store.files import understood
from anisoscope.store.run import Run
from anisoscope.studies.claims import bernas2026, godey2024, machina2024, open_questions, razzhigaev2023
from anisoscope.studies.claims.ahead import Ahead, spare_processes
from anisoscope.studies.claims.bench import Bench, Lab
from anisoscope.studies.claims.claim import FEWEST, Claim, Evidence, Verdict, judge, unjudged
from anisoscope.studies.claims.figure_cards import cards_of
from anisoscope.studies.claims.given import Given, given_models
from anisoscope.studies.claims.looks import Say
from anisoscope.studies.claims.sizes import SHOWN, SIZES, Size

CLAIMS: tuple[Claim, ...] = (
    *bernas2026.CLAIMS,
    *razzhigaev2023.CLAIMS,
    *godey2024.CLAIMS,
    *machina2024.CLAIMS,
    *open_questions.CLAIMS,
)
_EVIDENCE, _LAB, _MODELS = "evidence", "lab", "models"


def find_claims(ids: Sequence[str]) -> list[Claim]:
    """The claims of these ids, in the order of the papers; all of them for none."""
    known = {claim.id: claim for claim in CLAIMS}
    wanted = [each.upper() for each in ids]
    for each in wanted:
        if each not in known:
            raise unknown("claim", each, known)
    return [claim for claim in CLAIMS if claim.id in wanted] if wanted else list(CLAIMS)


def find_size(name: str, seeds: int | None = None) -> Size:
    """The size of this name, with another number of seeds where one is given."""
    if name not in SIZES:
        raise unknown("size", name, SIZES)
    return SIZES[name].with_seeds(seeds)


def cost(claims: Sequence[Claim], size: Size) -> float:
    """Minutes of one core that some claims take together where nothing is kept yet: trainings are shared."""
    trainings, looks = _work(claims, size)
    return trainings + looks


def time_to_wait(claims: Sequence[Claim], size: Size) -> float:
    """Minutes by the clock: trainings are made by as many processes as there are cores, looks by this one."""
    trainings, looks = _work(claims, size)
    return max(looks, (trainings + looks) / (1 + _processes(trainings)))


def _work(claims: Sequence[Claim], size: Size) -> tuple[float, float]:
    """Minutes of one core for trainings, and for looks."""
    cells = {cell for claim in claims if "lab" in claim.ways for cell in claim.cells}
    trainings = sum(min(FEWEST, size.seeds) if cell in SHOWN else size.seeds for cell in cells)
    looks = size.seeds * sum(claim.seconds for claim in claims) / SIZES["small"].train_seconds
    return trainings * size.train_seconds / 60, looks * size.train_seconds / 60


def _processes(minutes: float) -> int:
    """How many other processes train: none for what is done sooner than they would have started."""
    return spare_processes() if minutes > 1 else 0


@dataclass(frozen=True)
class ClaimsRequest:
    """What a run of claims works on."""

    size: Size
    models: tuple[str, ...] = ()
    revisions: str | None = None
    text: str | None = None
    images: Path | None = None
    audio: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "size": self.size.name,
            "seeds": self.size.seeds,
            "models": list(self.models),
            "revisions": self.revisions,
            "text": self.text,
            "images": None if self.images is None else str(self.images),
            "audio": None if self.audio is None else str(self.audio),
        }


def run_claims(
    claims: Sequence[Claim],
    out: str | Path,
    asked: ClaimsRequest,
    *,
    say: Say | None = None,
    command: str | None = None,
) -> Iterator[tuple[Claim, tuple[Verdict, Verdict]]]:
    """Every claim with its two verdicts, one after another; all verdicts so far are in the run `out` at any time.

    Evidence of a claim, trainings and looks that are there already are not made again; a claim for which no evidence
    can be had stays inconclusive, with the reason.
    """
    folder = Path(out)
    text = None if asked.models else asked.text
    bench = Bench(asked.size, Lab(folder / _LAB, asked.size, asked.size.seeds, say or (lambda _: None), text))
    bench = replace(bench, given=_given(asked, asked.models, asked.revisions, bench, folder))
    machine = f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores"
    info = {"kind": "claims", "asked": asked.to_json(), "versions": _versions(), "machine": machine}
    lacking = [claim for claim in claims if kept_evidence(folder, claim.id) is None and _trains(claim, bench, asked)]
    processes = _processes(_work(lacking, asked.size)[0])
    cells = list(dict.fromkeys(cell for claim in lacking for cell in claim.cells))
    with _opened(folder, info, command) as run, bench.lab.training_ahead(cells, processes):
        spent = _clock(run, bench.lab.ahead)
        for claim in claims:
            try:
                verdicts = judge(claim, kept_evidence(folder, claim.id) or _gathered(claim, bench, asked, folder))
            except AnisoscopeError as why:
                verdicts = unjudged(claim, str(why))
            _publish(run, claim, verdicts)
            run.update_info(minutes=spent())
            yield claim, verdicts


def _given(
    asked: ClaimsRequest, models: Sequence[str], revisions: str | None, bench: Bench, folder: Path
) -> tuple[tuple[Given, ...], ...]:
    template = {"size": asked.size, "text": asked.text, "images": asked.images, "audio": asked.audio}
    return given_models(models, revisions, folder / _MODELS, {**template, "say": bench.lab.say})


def _clock(run: Run, ahead: Ahead) -> Callable[[], dict[str, float]]:
    """Tells the minutes that a run has taken so far, broken off and continued, of its processor and by the clock."""
    before = run.info.get("minutes", {"processor": 0.0, "clock": 0.0})
    processor, clock = time.process_time(), time.monotonic()
    return lambda: {
        "processor": before["processor"] + (time.process_time() - processor + ahead.seconds) / 60,
        "clock": before["clock"] + (time.monotonic() - clock) / 60,
    }


def _versions() -> dict[str, str]:
    import torch

    return {"anisoscope": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _opened(folder: Path, info: dict[str, Any], command: str | None) -> Run:
    """The run of claims in a folder, begun or continued; what was asked must be the same."""
    if (folder / "run.json").is_file():
        before = Run.open(folder).info
        if before.get("kind") != "claims":
            raise InputError(f"{folder} is a run, but not of claims; choose another --out")
        if before.get("asked") != info["asked"]:
            differs = [name for name, value in info["asked"].items() if before["asked"].get(name) != value]
            raise InputError(
                f"{folder} was begun with another {' and '.join(differs)}; ask for the same, or choose another --out"
            )
    return Run.create(folder, info, command=command, resume=(folder / "run.json").is_file())


# --- evidence -----------------------------------------------------------------------------------------------------


def _gathered(claim: Claim, bench: Bench, asked: ClaimsRequest, folder: Path) -> Evidence:
    """The evidence of a claim, in the best way that what is at hand allows; it is kept.

    In size paper, where no models are given, those that the claim was made about are taken.
    """
    if asked.size.name == "paper" and not asked.models:
        bench = replace(bench, given=_given(asked, claim.sources, claim.revisions, bench, folder))
    way = _way(claim, bench)
    if way is None:
        raise InputError(f"it needs {claim.needs}")
    made = claim.ways[way](bench)
    place = folder / _EVIDENCE / claim.id
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    info = {"kind": "evidence", "claim": claim.id, "metrics": cards_of(made.records)}
    with Run.create(place, info) as run:
        run.append(made.records)
        run.update_info(evidence=made.to_json())  # last: it says that all is there
    return made


def _way(claim: Claim, bench: Bench) -> str | None:
    """How evidence of a claim is gathered from what is at hand."""
    return next((way for way in bench.ways() if way in claim.ways), None)


def _trains(claim: Claim, bench: Bench, asked: ClaimsRequest) -> bool:
    """Whether evidence of a claim is gathered from trainings, and not from models given or published."""
    published = asked.size.name == "paper" and not asked.models and bool(claim.sources)
    return not published and _way(claim, bench) == "lab"


def kept_evidence(folder: str | Path, claim: str) -> Evidence | None:
    """The evidence that a run of claims keeps for one of them."""
    place = Path(folder) / _EVIDENCE / claim
    if not (place / "run.json").is_file():
        return None
    run = Run.open(place)
    values = run.info.get("evidence")
    if values is None:
        return None
    with understood(place / "run.json", f"delete {place}, and the evidence is gathered again", StoreError):
        return Evidence.from_json(values, list(run.records()))


def evidence_run(folder: str | Path, claim: str) -> Run | None:
    """The run that holds the figure of a claim."""
    place = Path(folder) / _EVIDENCE / claim
    return Run.open(place) if (place / "run.json").is_file() else None


# --- verdicts -----------------------------------------------------------------------------------------------------


def _publish(run: Run, claim: Claim, verdicts: tuple[Verdict, Verdict]) -> None:
    """Put the verdicts into the run; earlier ones of the same claim go."""
    others = [record for record in run.records() if record.variant.get("claim") != claim.id]
    order = {each.id: place for place, each in enumerate(CLAIMS)}
    records = sorted(
        [*others, *(verdict.to_record() for verdict in verdicts)],
        key=lambda record: order.get(record.variant.get("claim", ""), len(order)),
    )
    run.rewind(0)
    run.append(records)


def last_verdicts(folder: str | Path) -> dict[str, dict[str, str]]:
    """Outcomes by claim and line, as a run of claims holds them; none where there is nothing yet."""
    if not Path(folder).exists():
        return {}
    found: dict[str, dict[str, str]] = {}
    for record in Run.open(folder).records():
        if record.metric == "verdict" and {"claim", "line", "verdict"} <= set(record.variant):
            found.setdefault(record.variant["claim"], {})[record.variant["line"]] = record.variant["verdict"]
    return found
