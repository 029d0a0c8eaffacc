"""N: Machina and Mercer 2024, Anisotropy is Not Inherent to Transformers: vocabulary matrices and the final norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import torch

from anisoscope.records import Record
from anisoscope.stats.inference import spearman
from anisoscope.studies.claims.claim import Claim, Evidence
from anisoscope.studies.claims.conditions import above, below, every, gate, significant
from anisoscope.studies.claims.curve_shapes import half_time
from anisoscope.studies.claims.downstream_evidence import follows_score_evidence
from anisoscope.studies.claims.estimate import CORRELATION, NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.gates import ENDED, LEARNT, LONG, SETTLED, TYPES
from anisoscope.studies.claims.measurements import SHAPE, WEIGHTS
from anisoscope.studies.claims.norm_effect import PERMUTATIONS, norm_effect
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, estimates
from anisoscope.studies.claims.sampled_cosine import sampled_matrix, sampled_rows
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects, SubjectSource
from anisoscope.studies.claims.vocabulary_matrix import isotropy, isotropy_rescaled, matrix_cosine, matrix_view

PAPER = "machina2024"
_LARGE, _SMALL = 4.0e8, 1.7e8  # a large model has at least, a small one at most this number of parameters
_FEW = 4  # models that an order over models needs
_ISOTROPIC = 4  # isotropic matrices that a rescaled I is compared with

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
    models = subjects.checkpoints("words")
    lab = isinstance(models[0], LabModel)
    quantities, records = _lateness(models, "AdamW" if lab else models[-1].name)
    if lab:
        records += _lateness(subjects.lab.series("untied-sgd"), "SGD, characters")[1]
    quantities[TYPES.name] = Estimate.exact(len(models[-1].output_matrix()))
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


def _norm_evidence(subjects: SubjectSource) -> Evidence:
    models = subjects.models("decoder")
    by_model = [model.per_unit(norm_effect) for model in models]
    unit = "seeds" if isinstance(models[0], LabModel) else "groups of documents"
    lowered = [Estimate.over([each.before - each.trained for each in effects], unit) for effects in by_model]
    reset = [Estimate.over([each.reset - each.trained for each in effects], unit) for effects in by_model]
    quantities = {
        "lowers": min(lowered, key=lambda each: each.value),
        "gain": min(reset, key=lambda each: each.value),
        "p": Estimate.over([each.p for effects in by_model for each in effects], unit),
    }
    left_out = {"bias_order": f"it takes at least {_FEW} models to compare"}
    if len(models) >= _FEW:
        cosine, bias = ([getattr(effects[0], name) for effects in by_model] for name in ("trained", "bias_share"))
        drop = [spearman(_without(cosine, i), _without(bias, i)) for i in range(len(models))]
        quantities["bias_order"] = Estimate.jackknifed(spearman(cosine, bias), drop, "models")
        left_out = {}
    records = [
        estimate_record(Estimate.over([getattr(each, name) for each in effects], unit), "final_cosine", of=of)
        for model, effects in zip(models, by_model, strict=True)
        for name, of in (
            ("before", f"{model.name}: before the norm"),
            ("trained", f"{model.name}: after it"),
            ("reset", f"{model.name}: after it, gain and bias reset"),
        )
    ]
    return subjects.evidence(models, quantities, records, left_out=left_out)


def _without(values: Sequence[float], index: int) -> list[float]:
    return [value for number, value in enumerate(values) if number != index]


# --- N5: hidden states and matrices -------------------------------------------------------------------------------


def isotropic_level(rows: int, width: int) -> Estimate:
    """Return the rescaled I of isotropic Gaussian matrices of this shape: with few rows, it is low by chance."""
    draws = [torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) for seed in range(_ISOTROPIC)]
    return Estimate.over([isotropy_rescaled(matrix_view(draw)) for draw in draws], "draws")


_LENS_WORDS = {
    "hidden": "cosine of hidden states",
    "hidden_across": "cosine across documents, without flagged tokens",
    "isotropy": "I of the vocabulary matrix",
    "isotropy_rescaled": "I of rescaled trained rows",
    "isotropic": "I of isotropic rows of this number",
}


def _lenses_evidence(subjects: SubjectSource) -> Evidence:
    model = subjects.models("words")[0]
    rows, width = model.output_matrix().shape
    hidden, matrix = model.measure(SHAPE), model.measure(WEIGHTS)
    quantities = estimates(
        {
            TYPES.name: lambda: Estimate.exact(rows),
            "isotropic": lambda: isotropic_level(rows, width),
            "hidden": lambda: estimate(lambda view: fmean(view.profile("mean_cosine")), hidden),
            "isotropy": lambda: estimate(isotropy, matrix),
            "hidden_across": lambda: estimate(
                lambda view: fmean(view.profile("mean_cosine_across_documents", "no-sink")), hidden
            ),
            "isotropy_rescaled": lambda: estimate(isotropy_rescaled, matrix),
        }
    )
    records = [estimate_record(quantities[name], "both_lenses", of=words) for name, words in _LENS_WORDS.items()]
    return subjects.evidence([model], quantities, records)


# --- the claims ---------------------------------------------------------------------------------------------------

# Step 0 and 20 evenly spaced steps up to 143,000, as published.
_TWENTY = ",".join(f"step{1000 * round(143 * part / 20)}" for part in range(21))
_HIGH_LOW = {"holds": 0.8, "fails": 0.4}  # I of large models: 0.73–0.82 published, 0.52 in the best earlier model
CLAIMS = (
    Claim(
        "N1",
        PAPER,
        "Large Pythia models have isotropic embedding spaces; small ones do not.",
        {"lab": _sizes_on_lab, "model": _sizes_on_models},
        published=every(
            above("large", 0.7, "I of the output matrix, large models (lab: widest)", SHARE, **_HIGH_LOW),
            below("small", 0.2, "I of the output matrix, small models (lab: narrowest)", SHARE, holds=0.08, fails=0.6),
        ),
        control=every(
            above("large_rescaled", 0.7, "the same, rows rescaled, trained rows only, large", SHARE, **_HIGH_LOW),
            below(
                "small_rescaled",
                0.2,
                "the same, rows rescaled, trained rows only, small",
                SHARE,
                holds=0.08,
                fails=0.6,
            ),
        ),
        settle="--model EleutherAI/pythia-70m --model EleutherAI/pythia-160m --model EleutherAI/pythia-410m "
        "--model EleutherAI/pythia-1b",
        figure=("partition_isotropy", "partition_isotropy_rescaled"),
        cells=("narrow", "untied", "wide", "untied-sgd"),
        seconds=1,
        scope="large models",
        sources=tuple(f"EleutherAI/pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b")),
        plain="Word vectors of large models spread evenly; those of small models do not",
        found="I(W) 0.73–0.82 from 410M parameters on (secondary source)",
    ),
    Claim(
        "N2",
        PAPER,
        "Anisotropy does not develop as theory predicts: in small models it comes late.",
        {"lab": _late_evidence, "checkpoints": _late_evidence},
        published=every(
            above("half", 0.5, "I of the output matrix at half of training", SHARE, holds=0.79, fails=0.3),
            below("last", 0.3, "I of the output matrix at the end", SHARE, holds=0.09, fails=0.6),
        ),
        control=every(
            above(
                "half_time",
                0.5,
                "share of training at which half of the cosine's change is done",
                SHARE,
                holds=0.7,
                fails=0.1,
            )
        ),
        settle="checkpoints: --model EleutherAI/pythia-70m --revisions 'step*'",
        figure=("partition_isotropy", "embedding_cosine"),
        cells=("words", "untied-sgd"),
        seconds=3,
        sources=("EleutherAI/pythia-70m",),
        revisions=_TWENTY,
        gates=(LEARNT, SETTLED, ENDED, TYPES, LONG),
        plain="In small models word vectors become uneven late in training, not at once",
        found="Pythia-70M: I(W) 0.79 at half of training, 0.09 at the end",
    ),
    Claim(
        "N3",
        PAPER,
        "The final LayerNorm is optimised for isotropy.",
        {"lab": _norm_evidence, "model": _norm_evidence},
        published=every(
            above("lowers", 0.0, "mean cosine of the states before the final norm − after it", holds=0.1, fails=-0.05),
            above(
                "bias_order",
                0.5,
                "rank correlation over models of the final cosine with ‖β‖/‖γ‖",
                CORRELATION,
                holds=0.9,
                fails=0.0,
            ),
        ),
        control=every(
            above("gain", 0.0, "cosine of the final states, gain and bias reset − as trained", holds=0.1, fails=-0.05),
            significant("p", 0.01, f"p against {PERMUTATIONS} permutations of gain and bias"),
        ),
        settle="--model EleutherAI/pythia-410m --text FILE",
        figure=("final_cosine",),
        cells=("decoder",),
        seconds=2,
        scope="large models",
        sources=("EleutherAI/pythia-410m", "EleutherAI/pythia-1b", "EleutherAI/pythia-1.4b", "EleutherAI/pythia-2.8b"),
        gates=(LEARNT,),
        plain="The last normalisation of large models is tuned to even out their states",
        found="isotropic models have the smallest bias in the final norm",
    ),
    Claim(
        "N4",
        PAPER,
        "A sampled mean cosine misleads; the exact one is cheap.",
        {"nothing": sampled_rows, "model": sampled_matrix},
        published=every(above("wrong", 0.1, "|sampled as released − exact|", NOT_NEGATIVE, holds=0.4, fails=0.0)),
        control=every(
            above("correct", 3.0, "|correct sample − exact| in standard errors", NOT_NEGATIVE, holds=6.0, fails=0.8)
        ),
        settle="more draws",
        figure=("mean_cosine",),
        seconds=0.2,
        plain="The usual estimate of the mean cosine, from sampled pairs, misleads",
        found="0.0046 and −8e-6 where the exact value is 0.75",
    ),
    Claim(
        "N5",
        PAPER,
        "Hidden states and vocabulary matrices of the same model differ in isotropy.",
        {"lab": _lenses_evidence, "model": _lenses_evidence},
        published=every(
            above("hidden", 0.2, "mean cosine of hidden states", CORRELATION, holds=0.4, fails=0.05),
            above("isotropy", 0.7, "I of the output matrix", SHARE, **_HIGH_LOW),
        ),
        control=every(
            gate("isotropic", 0.7, "I that isotropic Gaussian matrices of this shape read", within=SHARE),
            above(
                "hidden_across",
                0.2,
                "cosine across documents, without flagged tokens",
                CORRELATION,
                holds=0.4,
                fails=0.05,
            ),
            above("isotropy_rescaled", 0.7, "I of rescaled trained rows", SHARE, **_HIGH_LOW),
        ),
        settle="--model EleutherAI/pythia-410m --text FILE",
        figure=("both_lenses",),
        cells=("words",),
        seconds=2,
        sources=("EleutherAI/pythia-410m",),
        gates=(LEARNT, TYPES),
        plain="The two camps look at different things: states are uneven while word vectors are even",
        found="implied by the two papers together",
    ),
    Claim(
        "N6",
        PAPER,
        "Isotropy of the final states follows the downstream score over training.",
        {"lab": follows_score_evidence},
        published=every(
            above(
                "follows",
                0.8,
                "correlation over training of the final states' isotropy with the downstream score",
                CORRELATION,
                holds=0.95,
                fails=0.0,
            )
        ),
        control=every(
            above(
                "follows_given_loss",
                0.0,
                "the same at equal loss (partial correlation)",
                CORRELATION,
                holds=0.5,
                fails=0.0,
            )
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("downstream_score", "final_isotropy"),
        cells=("decoder",),
        seconds=20,
        gates=(LEARNT, SETTLED),
        plain="How even the final states are tells how good the model is, and when to stop",
        found="r = 0.99 for the smallest Pythia (secondary source)",
    ),
)
