"""N: Machina and Mercer 2024, Anisotropy is Not Inherent to Transformers: vocabulary matrices and the final norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from anisoscope.records import Record
from anisoscope.studies.claims.claim import MODEL, SIMULATION, Claim, Evidence, above, below, every, gate
from anisoscope.studies.claims.curve_shapes import half_time
from anisoscope.studies.claims.estimate import CORRELATION, NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.hidden_states import Batches, mean_cosine
from anisoscope.studies.claims.measurements import SHAPE, WEIGHTS
from anisoscope.studies.claims.norm_effect import PERMUTATIONS, NormEffect, norm_effect
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, estimates
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects, SubjectSource
from anisoscope.studies.claims.vocabulary_matrix import isotropy, isotropy_rescaled, matrix_cosine, matrix_view

PAPER = "machina2024"
_LARGE, _SMALL = 4.0e8, 1.7e8  # a large model has at least, a small one at most this number of parameters
_ROWS, _WIDTH, _SHIFT = 2000, 64, 1.0  # synthetic rows: the mean is as long as the spread, so the cosine is one half
_ISOTROPIC = 4  # isotropic matrices that a rescaled I is compared with
_PAIRS, _DRAWN = 1000, 200  # pairs, and rows, that samplers draw

# I(W) of Pythia-70M as published: input and output matrix, raw and centred.
_PYTHIA_70M = {"input": 0.9585, "output": 0.0831, "input, centred": 0.9968, "output, centred": 0.9725}


# --- N1, N2: vocabulary matrices ----------------------------------------------------------------------------------

_LENSES: dict[str, Callable[[RunView], float]] = {"": isotropy, "_rescaled": isotropy_rescaled}


def _sizes_on_lab(subjects: Subjects) -> Evidence:
    models = [subjects.lab.last(cell) for cell in ("narrow", "untied", "wide", "untied-sgd")]
    units = {model.name: model.measure(WEIGHTS) for model in models}
    quantities = {
        f"{name}{end}": estimate(lens, units[cell])
        for name, cell in (("large", "wide"), ("small", "narrow"))
        for end, lens in _LENSES.items()
    }
    records = [
        estimate_record(estimate(lens, each), f"partition_isotropy{end}", of=_cell_label(subjects, cell))
        for cell, each in units.items()
        for end, lens in _LENSES.items()
    ]
    return subjects.evidence(models, quantities, [*records, *_published()])


def _cell_label(subjects: Subjects, cell: str) -> str:
    width = int(subjects.size.switches["width"])
    widths = {"narrow": width // 2, "wide": width * 2}
    return f"lab, width {widths.get(cell, width)}" + (", SGD" if cell == "untied-sgd" else "")


def _published() -> list[Record]:
    return [
        Record("vectors", "partition_isotropy", value, variant={"of": f"Pythia-70M, {matrix}, published"})
        for matrix, value in _PYTHIA_70M.items()
    ]


def _sizes_on_models(subjects: Subjects) -> Evidence:
    quantities: dict[str, Estimate] = {}
    records: list[Record] = []
    models = subjects.given_models
    for model in models:
        units, parameters = model.measure(WEIGHTS), int(model.info["parameters"])
        for end, lens in _LENSES.items():
            value = estimate(lens, units)
            of = f"{model.name}, {parameters / 1e6:,.0f}M"
            records.append(estimate_record(value, f"partition_isotropy{end}", of=of))
            if parameters >= _LARGE:
                quantities[f"large{end}"] = min(quantities.get(f"large{end}", value), value, key=lambda e: e.value)
            elif parameters <= _SMALL:
                quantities[f"small{end}"] = max(quantities.get(f"small{end}", value), value, key=lambda e: e.value)
    return subjects.evidence(models, quantities, [*records, *_published()])


def _late_evidence(subjects: Subjects) -> Evidence:
    models = subjects.checkpoints("untied")
    lab = isinstance(models[0], LabModel)
    quantities, records = _lateness(models, "AdamW" if lab else models[-1].name)
    if lab:
        records += _lateness(subjects.checkpoints("untied-sgd"), "SGD")[1]
    return subjects.evidence(models, quantities, records)


def _lateness(models: Sequence[Subject], of: str) -> tuple[dict[str, Estimate], list[Record]]:
    steps, series = [model.step for model in models], [model.measure(WEIGHTS) for model in models]
    middle = min(range(len(steps)), key=lambda index: abs(steps[index] - steps[-1] / 2))
    quantities = {
        "half": estimate(isotropy, series[middle]),
        "last": estimate(isotropy, series[-1]),
        "half_time": estimate(lambda *views: half_time(steps, [matrix_cosine(view) for view in views]), *series),
    }
    records = [
        estimate_record(estimate(value, units), metric, of=of, step=step)
        for units, step in zip(series, steps, strict=True)
        for metric, value in (("partition_isotropy", isotropy), ("embedding_cosine", matrix_cosine))
    ]
    return quantities, records


# --- N3: the final norm -------------------------------------------------------------------------------------------


def _norm_evidence(subjects: Subjects) -> Evidence:
    model = subjects.models("decoder")[0]

    def effect(network: nn.Module, batches: Batches, number: int) -> NormEffect:
        return norm_effect(network, batches, number, subjects.size.sample)

    effects = model.per_unit(effect)
    unit = "seeds" if isinstance(model, LabModel) else "groups of documents"
    trained, reset = [each.trained for each in effects], [each.reset for each in effects]
    quantities = {
        "gain": Estimate.over([b - a for a, b in zip(trained, reset, strict=True)], unit),
        "p": Estimate.over([each.p for each in effects], unit),
    }
    records = [
        estimate_record(Estimate.over(values, unit), "final_cosine", of=of)
        for of, values in (("gain and bias as trained", trained), ("both reset", reset))
    ]
    return subjects.evidence([model], quantities, records)


# --- N4: samplers -------------------------------------------------------------------------------------------------


def wrong_sample(rows: Tensor, draw: torch.Generator) -> float:
    """Return the cosines of all pairs of drawn rows, summed over i < j and divided by the number of rows squared.

    The released sampler is known to divide by a wrong count, but not by which: this one is our choice.
    """
    u = nn.functional.normalize(rows[torch.randperm(len(rows), generator=draw)[:_DRAWN]].double(), dim=1)
    return float((u @ u.T).triu(1).sum()) / len(u) ** 2


def correct_sample(rows: Tensor, draw: torch.Generator) -> tuple[float, float]:
    """Return the mean cosine of drawn pairs of different rows, and its standard error."""
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
    quantities = {
        "wrong": Estimate.over([abs(a - b) for a, b in zip(wrong, exact, strict=True)], "draws"),
        "correct": Estimate.over(far, "draws"),
    }
    named = (("exact", exact), ("sampled, wrong count", wrong), ("sampled, correct", right))
    records = [estimate_record(Estimate.over(values, "draws"), "mean_cosine", of=of) for of, values in named]
    return Evidence(ran, scale, quantities, records=tuple(records))


def _sampled_rows(subjects: Subjects) -> Evidence:
    clouds = []
    for seed in range(subjects.size.draws):
        draw = torch.Generator().manual_seed(seed)
        shift = nn.functional.normalize(torch.randn(_WIDTH, generator=draw), dim=0) * _SHIFT * math.sqrt(_WIDTH)
        clouds.append(torch.randn(_ROWS, _WIDTH, generator=draw) + shift)
    return _sampling(clouds, f"{len(clouds)} sets of Gaussian rows whose mean is as long as their spread", SIMULATION)


def _sampled_matrix(subjects: Subjects) -> Evidence:
    model, draws = subjects.given_models[0], subjects.size.draws
    return _sampling([model.output_matrix()] * draws, f"output embeddings of {model.name}, {draws} draws", MODEL)


# --- N5: hidden states and matrices -------------------------------------------------------------------------------


def isotropic_level(rows: int, width: int) -> Estimate:
    """Return the rescaled I of isotropic Gaussian matrices of this shape: with few rows, it is low by chance."""
    draws = [torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) for seed in range(_ISOTROPIC)]
    return Estimate.over([isotropy_rescaled(matrix_view(draw)) for draw in draws], "draws")


def _lenses_evidence(subjects: SubjectSource) -> Evidence:
    model = subjects.models("decoder")[0]
    rows, width = model.output_matrix().shape
    hidden, matrix = model.measure(SHAPE), model.measure(WEIGHTS)
    quantities = estimates(
        {
            "isotropic": lambda: isotropic_level(rows, width),
            "hidden": lambda: estimate(lambda view: fmean(view.profile("mean_cosine")), hidden),
            "isotropy": lambda: estimate(isotropy, matrix),
            "hidden_across": lambda: estimate(
                lambda view: fmean(view.profile("mean_cosine_across_documents", "no-sink")), hidden
            ),
            "isotropy_rescaled": lambda: estimate(isotropy_rescaled, matrix),
        }
    )
    records = [estimate_record(value, "both_lenses", of=name.replace("_", ", ")) for name, value in quantities.items()]
    return subjects.evidence([model], quantities, records)


# --- the claims ---------------------------------------------------------------------------------------------------

# Step 0 and 20 evenly spaced steps up to 143,000, as published.
_TWENTY = ",".join(f"step{1000 * round(143 * part / 20)}" for part in range(21))
CLAIMS = (
    Claim(
        "N1",
        PAPER,
        "Large Pythia models have isotropic embedding spaces; small ones do not.",
        {"lab": _sizes_on_lab, "model": _sizes_on_models},
        published=every(
            above("large", 0.7, "I of the output matrix, large models (lab: widest)", SHARE),
            below("small", 0.2, "I of the output matrix, small models (lab: narrowest)", SHARE),
        ),
        control=every(
            above("large_rescaled", 0.7, "the same, rows rescaled, trained rows only, large", SHARE),
            below("small_rescaled", 0.2, "the same, rows rescaled, trained rows only, small", SHARE),
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
        "Anisotropy does not develop as theory predicts: in small models it comes late.",
        {"lab": _late_evidence, "checkpoints": _late_evidence},
        published=every(
            above("half", 0.5, "I of the output matrix at half of training", SHARE),
            below("last", 0.3, "I of the output matrix at the end", SHARE),
        ),
        control=every(above("half_time", 0.5, "share of training at which half of the cosine's change is done", SHARE)),
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
        {"lab": _norm_evidence, "model": _norm_evidence},
        published=every(above("gain", 0.1, "cosine of the final states, gain and bias reset − as trained")),
        control=every(below("p", 0.01, f"p against {PERMUTATIONS} permutations of gain and bias", SHARE)),
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
        {"nothing": _sampled_rows, "model": _sampled_matrix},
        published=every(above("wrong", 0.1, "|sampled with the wrong count − exact|", NOT_NEGATIVE)),
        control=every(above("correct", 3.0, "|correct sample − exact| in standard errors", NOT_NEGATIVE)),
        settle="more draws",
        figure=("mean_cosine",),
        seconds=0.2,
    ),
    Claim(
        "N5",
        PAPER,
        "Hidden states and vocabulary matrices of the same model differ in isotropy.",
        {"lab": _lenses_evidence, "model": _lenses_evidence},
        published=every(
            above("hidden", 0.2, "mean cosine of hidden states", CORRELATION),
            above("isotropy", 0.7, "I of the output matrix", SHARE),
        ),
        control=every(
            gate("isotropic", 0.7, "I that isotropic Gaussian matrices of this shape read", SHARE),
            above("hidden_across", 0.2, "cosine across documents, without flagged tokens", CORRELATION),
            above("isotropy_rescaled", 0.7, "I of rescaled trained rows", SHARE),
        ),
        settle="--model EleutherAI/pythia-410m --text FILE",
        figure=("both_lenses",),
        cells=("decoder",),
        seconds=2,
        sources=("EleutherAI/pythia-410m",),
    ),
)
