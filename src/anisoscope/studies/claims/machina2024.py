"""N: Machina and Mercer 2024, Anisotropy is Not Inherent to Transformers: vocabulary matrices and the final norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import find_layout
from anisoscope.data.inputs import first_item
from anisoscope.measurement.final_norm import final_norm, norm_variants
from anisoscope.measurement.measure_weights import INPUT, OUTPUT, vocabulary_matrices
from anisoscope.metrics import find
from anisoscope.metrics.evaluate import evaluate
from anisoscope.records import Record
from anisoscope.stats.collect import cloud_of
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, SIMULATION, Claim, Estimate, Evidence, above, below, every, gate
from anisoscope.studies.claims.given import Given, groups_of, ran_on
from anisoscope.studies.claims.looks import SHAPE, WEIGHTS
from anisoscope.studies.claims.readings import RunView, Units, drawn, estimate, estimates
from anisoscope.studies.claims.states import Batches, mean_cosine, states
from anisoscope.studies.claims.statistics import half_time

PAPER = "machina2024"
_LARGE, _SMALL = 4.0e8, 1.7e8  # parameters from which, and up to which, a model is large or small
_PERMUTATIONS = 200
_ROWS, _WIDTH, _SHIFT = 2000, 64, 1.0  # of a synthetic cloud: its mean is as long as its rows' spread, cosine one half
_ISOTROPIC = 4  # matrices beside which a rescaled I is read
_PAIRS, _DRAWN = 1000, 200  # pairs, and rows, that samplers draw

# I(W) of Pythia-70M as published: input and output matrix, raw and centred.
_PYTHIA_70M = {"input": 0.9585, "output": 0.0831, "input, centred": 0.9968, "output, centred": 0.9725}


# --- vocabulary matrices ------------------------------------------------------------------------------------------


def matrix_reading(matrix: Tensor) -> RunView:
    """The metrics of a vocabulary matrix, under the site that `measure` gives it."""
    metrics = find(WEIGHTS.metrics)
    cloud = cloud_of(matrix, set().union(*(metric.sources for metric in metrics)) | {"Moments", "Directions"})
    return RunView.of(each.record for each in evaluate(cloud, metrics, site=OUTPUT, errors=False))


def isotropy(reading: RunView) -> float:
    """I(W) as published: rows as they are, eigenvectors on the side of the mean."""
    return _of_output(reading, "partition_isotropy", rows="raw", signs="mean")


def isotropy_rescaled(reading: RunView) -> float:
    """I(W) of rows of unit mean square, both signs, never-trained rows left out."""
    return _of_output(reading, "partition_isotropy", rows="unit-rms", signs="both")


def cosine(reading: RunView) -> float:
    return _of_output(reading, "mean_cosine")


def _of_output(reading: RunView, metric: str, **variant: str) -> float:
    """The value of the output matrix, or of the one matrix that is both; trained rows where they are told apart."""
    found = reading.find(metric, **variant)
    found = [e for e in found if e.variant.get("matrix", "raw") in ("raw", "trained")]
    name = OUTPUT if any(str(e.site) == OUTPUT for e in found) else INPUT
    here = {e.variant.get("matrix", "raw"): e.value for e in found if str(e.site) == name}
    rescaled = variant.get("rows") == "unit-rms"
    return here.get("trained", here["raw"]) if rescaled else here["raw"]


def lab_matrix(bench: Bench, cell: str, seed: int, step: int) -> RunView:
    """The output matrix of a training of the lab: the rows of tokens that its text has."""
    return matrix_reading(_used_rows(bench, cell, seed, step))


def _used_rows(bench: Bench, cell: str, seed: int, step: int) -> Tensor:
    model: Any = bench.lab.model(cell, seed, step)
    used = torch.from_numpy(bench.lab.data(cell, seed).train.astype("int64")).unique()
    return model.head.weight.detach()[used]  # (tokens that the text has, d)


def _lab_matrices(bench: Bench, cell: str, step: int) -> Units:
    return Units(tuple(lab_matrix(bench, cell, seed, step) for seed in bench.lab.seeds_of(cell)))


# --- N1, N2 -------------------------------------------------------------------------------------------------------

_LENSES: dict[str, Callable[[RunView], float]] = {"": isotropy, "_rescaled": isotropy_rescaled}


def _sizes_on_lab(bench: Bench) -> Evidence:
    looks = {cell: _lab_matrices(bench, cell, bench.size.steps) for cell in ("narrow", "untied", "wide", "untied-sgd")}
    found = {
        f"{name}{end}": estimate(lens, looks[cell])
        for name, cell in (("large", "wide"), ("small", "narrow"))
        for end, lens in _LENSES.items()
    }
    records = [
        drawn(estimate(lens, look), f"partition_isotropy{end}", of=_cell_said(bench, cell))
        for cell, look in looks.items()
        for end, lens in _LENSES.items()
    ]
    return Evidence(bench.said(), LAB, found, records=(*records, *_published()))


def _cell_said(bench: Bench, cell: str) -> str:
    width = int(bench.size.switches["width"])
    widths = {"narrow": width // 2, "wide": width * 2}
    return f"lab, width {widths.get(cell, width)}" + (", SGD" if cell == "untied-sgd" else "")


def _published() -> list[Record]:
    return [
        Record("vectors", "partition_isotropy", value, variant={"of": f"Pythia-70M, {matrix}, published"})
        for matrix, value in _PYTHIA_70M.items()
    ]


def _sizes_on_models(bench: Bench) -> Evidence:
    found: dict[str, Estimate] = {}
    records: list[Record] = []
    for model in bench.models:
        look, parameters = model.look(WEIGHTS), int(model.info["parameters"])
        for end, lens in _LENSES.items():
            value = estimate(lens, look)
            records.append(drawn(value, f"partition_isotropy{end}", of=f"{model.name}, {parameters / 1e6:,.0f}M"))
            if parameters >= _LARGE:
                found[f"large{end}"] = min(found.get(f"large{end}", value), value, key=lambda e: e.value)
            elif parameters <= _SMALL:
                found[f"small{end}"] = max(found.get(f"small{end}", value), value, key=lambda e: e.value)
    return Evidence(ran_on(bench.models), MODEL, found, records=(*records, *_published()))


def _lateness(series: Sequence[Units], steps: Sequence[int], of: str) -> tuple[dict[str, Estimate], list[Record]]:
    middle = min(range(len(steps)), key=lambda place: abs(steps[place] - steps[-1] / 2))
    found = {
        "half": estimate(isotropy, series[middle]),
        "last": estimate(isotropy, series[-1]),
        "half_time": estimate(lambda *readings: half_time(steps, [cosine(r) for r in readings]), *series),
    }
    records = [
        drawn(estimate(value, units), metric, of=of, step=step)
        for units, step in zip(series, steps, strict=True)
        for metric, value in (("partition_isotropy", isotropy), ("embedding_cosine", cosine))
    ]
    return found, records


def _late_on_lab(bench: Bench) -> Evidence:
    looks = bench.size.looks
    found, records = _lateness([_lab_matrices(bench, "untied", step) for step in looks], looks, "AdamW")
    _, rival = _lateness([_lab_matrices(bench, "untied-sgd", step) for step in looks], looks, "SGD")
    return Evidence(bench.said(), LAB, found, records=(*records, *rival))


def _late_on_checkpoints(bench: Bench) -> Evidence:
    steps = [model.step for model in bench.series]
    found, records = _lateness([model.look(WEIGHTS) for model in bench.series], steps, bench.series[-1].name)
    return Evidence(ran_on(bench.series), MODEL, found, records=tuple(records))


# --- N3: the final norm -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormEffect:
    """Cosine of the final states as trained and with gain and bias reset; the share of permutations that are lower."""

    trained: float
    reset: float
    p: float


def norm_effect(model: nn.Module, batches: Batches, seed: int, rows: int) -> NormEffect:
    """What gain and bias of the final norm do to the cosine; p permutes them over coordinates, in step."""
    norm = final_norm(model, find_layout(model, first_item(batches[0], torch.device("cpu"))))
    x = states(model, batches, ["final.in"])["final.in"][:rows].to(next(norm.parameters()).device)
    values: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name, _, y in norm_variants(norm, x, seed, _PERMUTATIONS):
            values.setdefault(name, []).append(mean_cosine(y))
    trained = values["as trained"][0]
    reset = next(values[name][0] for name in ("both reset", "gain reset", "bias reset") if name in values)
    lower = sum(value <= trained for value in values["permuted"])
    return NormEffect(trained, reset, (1 + lower) / (1 + _PERMUTATIONS))


def _norm_evidence(effects: Sequence[NormEffect], unit: str, ran: str, scale: str) -> Evidence:
    trained, reset = ([getattr(e, name) for e in effects] for name in ("trained", "reset"))
    found = {
        "gain": Estimate.over([b - a for a, b in zip(trained, reset, strict=True)], unit),
        "p": Estimate.over([e.p for e in effects], unit),
    }
    records = [
        drawn(Estimate.over(values, unit), "final_cosine", of=of)
        for of, values in (("gain and bias as trained", trained), ("both reset", reset))
    ]
    return Evidence(ran, scale, found, records=tuple(records))


def _norm_on_lab(bench: Bench) -> Evidence:
    lab, last = bench.lab, bench.size.steps
    effects = [
        norm_effect(lab.model("decoder", seed, last), lab.batches("decoder"), seed, bench.size.sample)
        for seed in range(lab.seeds)
    ]
    return _norm_evidence(effects, "seeds", bench.said(), LAB)


def _norm_on_model(bench: Bench) -> Evidence:
    model = bench.models[0]
    opened = model.open()
    groups = groups_of(model.batches(opened))
    effects = [norm_effect(opened.model, group, seed, bench.size.sample) for seed, group in enumerate(groups)]
    return _norm_evidence(effects, "groups of documents", ran_on([model]), MODEL)


# --- N4: samplers -------------------------------------------------------------------------------------------------


def wrong_sample(rows: Tensor, draw: torch.Generator) -> float:
    """Cosines of all pairs of some drawn rows, summed over i < j and divided by their number squared.

    The notes say that the released sampler divides by the wrong count, not by which: this one is a choice of ours.
    """
    u = nn.functional.normalize(rows[torch.randperm(len(rows), generator=draw)[:_DRAWN]].double(), dim=1)
    return float((u @ u.T).triu(1).sum()) / len(u) ** 2


def correct_sample(rows: Tensor, draw: torch.Generator) -> tuple[float, float]:
    """The mean cosine of drawn pairs of different rows, and its standard error."""
    i = torch.randint(len(rows), (_PAIRS,), generator=draw)
    j = (i + torch.randint(1, len(rows), (_PAIRS,), generator=draw)) % len(rows)
    values = nn.functional.cosine_similarity(rows[i].double(), rows[j].double())
    return float(values.mean()), float(values.std() / math.sqrt(_PAIRS))


def _sampling(clouds: Sequence[Tensor], ran: str, scale: str) -> Evidence:
    exact, wrong, right, far = [], [], [], []
    for seed, rows in enumerate(clouds):
        draw = torch.Generator().manual_seed(seed)
        value, error = correct_sample(rows, draw)
        exact.append(mean_cosine(rows))
        wrong.append(wrong_sample(rows, draw))
        right.append(value)
        far.append(abs(value - exact[-1]) / error)
    found = {
        "wrong": Estimate.over([abs(a - b) for a, b in zip(wrong, exact, strict=True)], "draws"),
        "correct": Estimate.over(far, "draws"),
    }
    named = (("exact", exact), ("sampled, wrong count", wrong), ("sampled, correct", right))
    records = [drawn(Estimate.over(values, "draws"), "mean_cosine", of=of) for of, values in named]
    return Evidence(ran, scale, found, records=tuple(records))


def _sampled_clouds(bench: Bench) -> Evidence:
    clouds = []
    for seed in range(bench.size.draws):
        draw = torch.Generator().manual_seed(seed)
        shift = nn.functional.normalize(torch.randn(_WIDTH, generator=draw), dim=0) * _SHIFT * math.sqrt(_WIDTH)
        clouds.append(torch.randn(_ROWS, _WIDTH, generator=draw) + shift)
    return _sampling(clouds, f"{len(clouds)} Gaussian clouds whose mean is as long as their spread", SIMULATION)


def _sampled_matrix(bench: Bench) -> Evidence:
    model = bench.models[0]
    matrix = list(vocabulary_matrices(model.open().model).values())[-1].cpu()
    return _sampling([matrix] * bench.size.draws, f"output embeddings of {model.name}, {bench.size.draws} draws", MODEL)


# --- N5: both lenses ----------------------------------------------------------------------------------------------


def isotropic_reading(rows: int, width: int) -> Estimate:
    """What the rescaled I reads of isotropic Gaussian matrices of this shape: few rows look anisotropic by chance."""
    draws = [torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) for seed in range(_ISOTROPIC)]
    return Estimate.over([isotropy_rescaled(matrix_reading(draw)) for draw in draws], "draws")


def _lenses(hidden: Units, matrix: Units, shape: tuple[int, int]) -> tuple[dict[str, Estimate], list[Record]]:
    found = estimates(
        {
            "isotropic": lambda: isotropic_reading(*shape),
            "hidden": lambda: estimate(lambda r: fmean(r.profile("mean_cosine")), hidden),
            "isotropy": lambda: estimate(isotropy, matrix),
            "hidden_across": lambda: estimate(
                lambda r: fmean(r.profile("mean_cosine_across_documents", "no-sink")), hidden
            ),
            "isotropy_rescaled": lambda: estimate(isotropy_rescaled, matrix),
        }
    )
    return found, [drawn(value, "both_lenses", of=name.replace("_", ", ")) for name, value in found.items()]


def _lenses_on_lab(bench: Bench) -> Evidence:
    last = bench.size.steps
    rows, width = _used_rows(bench, "decoder", 0, last).shape
    found, records = _lenses(bench.lab.last("decoder", SHAPE), _lab_matrices(bench, "decoder", last), (rows, width))
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _lenses_on_model(bench: Bench) -> Evidence:
    model: Given = bench.models[0]
    rows, width = list(vocabulary_matrices(model.open().model).values())[-1].shape
    found, records = _lenses(model.look(SHAPE), model.look(WEIGHTS), (rows, width))
    return Evidence(ran_on([model]), MODEL, found, records=tuple(records))


# --- the claims ---------------------------------------------------------------------------------------------------

# Step 0 and 20 evenly spaced ones of 143,000, as published.
_TWENTY = ",".join(f"step{1000 * round(143 * part / 20)}" for part in range(21))
CLAIMS = (
    Claim(
        "N1",
        PAPER,
        "Large Pythia models have isotropic embedding spaces; small ones do not.",
        {"lab": _sizes_on_lab, "model": _sizes_on_models},
        published=every(
            above("large", 0.7, "I of the output matrix, large models (lab: widest)"),
            below("small", 0.2, "I of the output matrix, small models (lab: narrowest)"),
        ),
        control=every(
            above("large_rescaled", 0.7, "the same, rows rescaled, trained rows only, large"),
            below("small_rescaled", 0.2, "the same, rows rescaled, trained rows only, small"),
        ),
        settle="--model EleutherAI/pythia-70m --model EleutherAI/pythia-160m --model EleutherAI/pythia-410m "
        "--model EleutherAI/pythia-1b",
        figure=("partition_isotropy", "partition_isotropy_rescaled"),
        cells=("narrow", "untied", "wide", "untied-sgd"),
        seconds=1,
        large=True,
        sources=tuple(
            f"EleutherAI/pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
        ),
    ),
    Claim(
        "N2",
        PAPER,
        "Anisotropy does not develop as theorised: in small models it comes late.",
        {"lab": _late_on_lab, "checkpoints": _late_on_checkpoints},
        published=every(
            above("half", 0.5, "I of the output matrix at half of training"),
            below("last", 0.3, "I of the output matrix at the end"),
        ),
        control=every(above("half_time", 0.5, "share of training at which half of the cosine's change is done")),
        settle="checkpoints: --model EleutherAI/pythia-70m --revisions 'step*'",
        figure=("partition_isotropy", "embedding_cosine"),
        cells=("untied", "untied-sgd"),
        seconds=3,
        sources=("EleutherAI/pythia-70m",),
        revisions=_TWENTY,
    ),
    Claim(
        "N3",
        PAPER,
        "The final LayerNorm is optimised for isotropy.",
        {"lab": _norm_on_lab, "model": _norm_on_model},
        published=every(above("gain", 0.1, "cosine of the final states, gain and bias reset − as trained")),
        control=every(below("p", 0.01, f"p against {_PERMUTATIONS} permutations of gain and bias")),
        settle="--model EleutherAI/pythia-410m --text FILE",
        figure=("final_cosine",),
        cells=("decoder",),
        seconds=1,
        sources=("EleutherAI/pythia-410m",),
    ),
    Claim(
        "N4",
        PAPER,
        "A sampled mean cosine misleads; the exact one is cheap.",
        {"nothing": _sampled_clouds, "model": _sampled_matrix},
        published=every(above("wrong", 0.1, "|sampled with the wrong count − exact|")),
        control=every(above("correct", 3.0, "|correct sample − exact| in standard errors")),
        settle="more draws",
        figure=("mean_cosine",),
        seconds=0.2,
    ),
    Claim(
        "N5",
        PAPER,
        "Hidden states and vocabulary matrices tell different stories of the same model.",
        {"lab": _lenses_on_lab, "model": _lenses_on_model},
        published=every(
            above("hidden", 0.2, "mean cosine of hidden states"),
            above("isotropy", 0.7, "I of the output matrix"),
        ),
        control=every(
            gate("isotropic", 0.7, "I that isotropic Gaussian matrices of this shape read"),
            above("hidden_across", 0.2, "cosine across documents, without flagged tokens"),
            above("isotropy_rescaled", 0.7, "I of rescaled trained rows"),
        ),
        settle="--model EleutherAI/pythia-410m --text FILE",
        figure=("both_lenses",),
        cells=("decoder",),
        seconds=2,
        sources=("EleutherAI/pythia-410m",),
    ),
)
