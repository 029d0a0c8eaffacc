"""S: Razzhigaev et al. 2023, The Shape of Learning: a bell over layers, a dimension that rises and falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.stats.inference import bell, spearman
from anisoscope.studies.claims.claim import Claim, Evidence, above, below, every, gate
from anisoscope.studies.claims.curve_shapes import span
from anisoscope.studies.claims.dimension_evidence import HIGHEST, SCALE, dimension_evidence, low_dimension_evidence
from anisoscope.studies.claims.estimate import CORRELATION, NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.given_models import GivenModel
from anisoscope.studies.claims.measurements import BELL, LOCAL, REMOVAL, SHAPE, TYLER, MeasurementKind
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    estimate,
    estimate_record,
    estimates,
    figure_records,
    least_favourable,
    profile_records,
)
from anisoscope.studies.claims.subjects import Subject, Subjects, SubjectSource

PAPER = "razzhigaev2023"
_SHARE, _TYLER = "spectral_anisotropy", "tyler_share"
Statistic = Callable[[RunView], float]
Shape = Callable[[Sequence[float]], float]
_VERSIONS = ("", "_no_sink", "_tyler")  # of a quantity: all tokens, without flagged ones, of Tyler's matrix

# λ1/Σλ over hidden states as in the paper's figures, the embedding first; None if no source gives a value.
_FIGURES: dict[str, tuple[float | None, ...]] = {
    "GPT-2, published": (0.06, 0.30, 0.97, *[0.98] * 9, 0.83),
    "BERT, published, least": (0.01,) * 13,
    "BERT, published, most": (0.04,) * 13,
    "OPT-125m, published": (0.98, *[None] * 5, 0.995, *[None] * 5, 0.96),
    "Llama-2-7B, published": (*[None] * 11, *[1.0] * 11, *[None] * 10, 0.06),
}


def _of_profile(shape: Shape, metric: str, tokens: str = "all") -> Statistic:
    return lambda view: shape(view.profile(metric, tokens))


# --- S1, S6: the bell ---------------------------------------------------------------------------------------------


def bell_evidence(subjects: SubjectSource, kind: MeasurementKind = SHAPE) -> Evidence:
    """Gather the bell of decoders and the range of encoders over layers (S1).

    Args:
        subjects: Where the models come from.
        kind: The measurement of λ1/Σλ; `BELL` also has the removal curve of every model.
    """
    models = subjects.models("decoder", "encoder")
    each = [
        _bells("bell", bell, model, kind) if model.decoder else _bells("range", span, model, kind) for model in models
    ]
    records = [record for model in models for record in _profiles(model, kind)]
    for model in models if kind is BELL else models[:1]:
        units = model.measure(BELL if kind is BELL else REMOVAL)
        records += figure_records(units, REMOVAL.metrics, of=model.name)
    records += _published(max(_depth(model.measure(kind)) for model in models))
    quantities = least_favourable(each, highest=[f"range{version}" for version in _VERSIONS])
    return subjects.evidence(models, quantities, records, left_out=_not_given(models))


def _bells(name: str, shape: Shape, model: Subject, kind: MeasurementKind) -> dict[str, Estimate]:
    """A shape of the profile of all tokens, without flagged tokens, and of Tyler's matrix."""
    return estimates(
        {
            name: lambda: estimate(_of_profile(shape, _SHARE), model.measure(kind)),
            f"{name}_no_sink": lambda: estimate(_of_profile(shape, _SHARE, "no-sink"), model.measure(kind)),
            f"{name}_tyler": lambda: estimate(_of_profile(shape, _TYLER, "no-sink"), model.measure(TYLER)),
        }
    )


def _profiles(model: Subject, kind: MeasurementKind) -> list[Record]:
    """λ1/Σλ of one model over hidden states with and without flagged tokens, and that of Tyler's matrix."""
    records: list[Record] = []
    for measured, metric, tokens in ((kind, _SHARE, "all"), (kind, _SHARE, "no-sink"), (TYLER, _TYLER, "no-sink")):
        try:
            records += profile_records(model.measure(measured), metric, of=model.name, tokens=tokens)
        except Missing:
            continue
    return records


def _depth(units: Units) -> int:
    return len((units.whole or units.parts[0]).profile(_SHARE))


def _published(depth: int) -> list[Record]:
    """The published profiles, resampled to the depth of the measured models."""
    records = []
    for name, values in _FIGURES.items():
        for index in range(depth):
            value = values[round(index * (len(values) - 1) / (depth - 1))]
            if value is not None:
                site = "embed" if index == 0 else f"resid.{index - 1}"
                records.append(Record(site, _SHARE, value, variant={"of": name}, note="at equal relative depth"))
    return records


def _not_given(models: Sequence[Subject]) -> dict[str, str]:
    absent = {
        name: reason
        for name, decoder, reason in (("bell", True, "no decoder was given"), ("range", False, "no encoder was given"))
        if all(model.decoder != decoder for model in models)
    }
    return {f"{name}{version}": reason for name, reason in absent.items() for version in _VERSIONS}


def _bell_on_models(subjects: Subjects) -> Evidence:
    evidence = bell_evidence(subjects, BELL)
    means = [record for model in subjects.given_models for record in _means_over_batches(model)]
    return replace(evidence, records=(*evidence.records, *means))


def _means_over_batches(model: GivenModel) -> list[Record]:
    """The mean over batches with its error, as published. The rules use the pooled values."""
    of = f"{model.name}, mean over batches of {model.size.batch_tokens:,} tokens"
    return [
        replace(record, variant={"of": of}, run="")
        for record in model.run(BELL).records()
        if record.metric == _SHARE and record.variant.get("of batches") == "mean"
    ]


def mask_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the bells of models that differ in the mask and in the objective (S6)."""
    models = subjects.models("decoder", "causal-masked", "encoder", "uniform", "no-attention")
    units = {model.name: model.measure(SHAPE) for model in models}
    height = _of_profile(bell, _SHARE)

    def difference_of_bells(a: str, b: str) -> Estimate:
        return estimate(lambda one, other: height(one) - height(other), units[a], units[b])

    quantities = {
        "causal": difference_of_bells("decoder", "encoder"),
        "mask_alone": difference_of_bells("causal-masked", "encoder"),
    }
    records = [record for cell, each in units.items() for record in profile_records(each, _SHARE, of=cell)]
    return subjects.evidence(models, quantities, records)


# --- S4, S5 -------------------------------------------------------------------------------------------------------


def _local_evidence(subjects: SubjectSource) -> Evidence:
    """IsoScore within clusters, compared with that of all rows and of Gaussian rows (S4)."""
    model = subjects.models("decoder")[0]
    units = model.measure(LOCAL)

    def over_global(view: RunView) -> float:
        return fmean(view.profile("local_isotropy")) - fmean(view.profile("isoscore"))

    def over_gaussian(view: RunView) -> float:
        return fmean(entry.value - (entry.null or 0.0) for entry in view.find("local_isotropy"))

    quantities = estimates(
        {
            "over_global": lambda: estimate(over_global, units),
            "over_gaussian": lambda: estimate(over_gaussian, units),
        }
    )
    return subjects.evidence([model], quantities, figure_records(units, LOCAL.metrics, of=model.name))


def growth_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the change of anisotropy over training and its rank correlation with the step (S5)."""
    models = subjects.checkpoints("decoder")
    steps = [model.step for model in models]
    shape, tyler = ([model.measure(kind) for model in models] for kind in (SHAPE, TYLER))
    versions = {
        "": (shape, _SHARE, "all"),
        "_no_sink": (shape, _SHARE, "no-sink"),
        "_tyler": (tyler, _TYLER, "no-sink"),
    }
    makers: dict[str, Callable[[], Estimate]] = {}
    records: list[Record] = []
    for version, (series, metric, tokens) in versions.items():
        mean = _of_profile(fmean, metric, tokens)
        makers[f"growth{version}"] = partial(estimate, partial(_last_minus_first, mean), *series)
        makers[f"order{version}"] = partial(estimate, partial(_order, mean, steps), *series)
        records += _means(mean, dict(zip(steps, series, strict=True)), metric, f"mean over layers, {tokens}")
    return subjects.evidence(models, estimates(makers), records)


def _last_minus_first(value: Statistic, *views: RunView) -> float:
    return value(views[-1]) - value(views[0])


def _order(value: Statistic, steps: Sequence[int], *views: RunView) -> float:
    return spearman(steps, [value(view) for view in views])


def _means(mean: Statistic, series: Mapping[int, Units], metric: str, of: str) -> list[Record]:
    records = []
    for step, units in series.items():
        try:
            value = estimate(mean, units)
        except Missing:
            continue
        records.append(estimate_record(value, metric, of=of, step=step))
    return records


# --- the claims ---------------------------------------------------------------------------------------------------

_CHECKPOINTS = "step0,step128,step1000,step8000,step43000,step143000"
_TYLERS = "of Tyler's matrix, without them"
CLAIMS = (
    Claim(
        "S1",
        PAPER,
        "In decoders, anisotropy over layers is a bell, highest in the middle; in encoders it is flat.",
        {"lab": bell_evidence, "model": _bell_on_models},
        published=every(
            above("bell", 0.1, "decoder, middle third − higher end sixth of λ1/Σλ"),
            below("range", 0.1, "encoder, range over layers", SHARE),
        ),
        control=every(
            above("bell_no_sink", 0.1, "decoder's bell without flagged tokens"),
            below("range_no_sink", 0.1, "encoder's range without flagged tokens", SHARE),
            above("bell_tyler", 0.1, f"decoder's bell {_TYLERS}"),
            below("range_tyler", 0.1, f"encoder's range {_TYLERS}", SHARE),
        ),
        settle="a decoder and an encoder: --model gpt2 --model bert-base-uncased --text FILE",
        figure=(_SHARE, _TYLER, "removal_curve"),
        cells=("decoder", "encoder"),
        seconds=12,
        sources=("openai-community/gpt2", "google-bert/bert-base-uncased"),
    ),
    Claim(
        "S2",
        PAPER,
        "Intrinsic dimension rises early in training, then falls.",
        {"lab": dimension_evidence, "checkpoints": dimension_evidence},
        published=every(
            above("rise_paper", 0.0, "peak − first, published estimator"),
            above("fall_paper", 0.0, "peak − last, published estimator"),
        ),
        control=every(
            *(
                above(f"{move}_{name}", 0.0, f"{words}, {estimator}")
                for name, estimator in (
                    ("two_nn", "duplicates removed"),
                    ("gride", f"GRIDE k = {SCALE}"),
                    ("other_documents", "neighbours in other documents"),
                )
                for move, words in (("rise", "peak − first"), ("fall", "peak − last"))
            )
        ),
        settle="checkpoints of a long training: --model EleutherAI/pythia-70m --revisions 'step*' --text FILE",
        figure=("intrinsic_dimension",),
        cells=("decoder",),
        seconds=40,
        sources=("EleutherAI/pythia-2.8b",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "S3",
        PAPER,
        "Intrinsic dimension is low: never above 60 in decoders.",
        {"lab": low_dimension_evidence, "model": low_dimension_evidence},
        published=every(
            below("highest_paper", HIGHEST, "highest dimension of a layer, published estimator", NOT_NEGATIVE)
        ),
        control=every(
            gate("gaussian", HIGHEST, "dimension read off N(0, C) at the same n", NOT_NEGATIVE),
            below("highest", HIGHEST, "highest dimension of a layer, duplicates removed", NOT_NEGATIVE),
        ),
        settle="a model for which Gaussian rows have a dimension above 60 at this n: a wide one, on many tokens",
        figure=("two_nn_paper",),
        cells=("decoder",),
        seconds=3,
        sources=("openai-community/gpt2",),
    ),
    Claim(
        "S4",
        PAPER,
        "Clusters of states are isotropic, although all states together are not.",
        {"lab": _local_evidence, "model": _local_evidence},
        published=every(above("over_global", 0.0, "IsoScore within clusters − of the whole")),
        control=every(above("over_gaussian", 0.0, "IsoScore within clusters − the same of N(0, C)")),
        settle="more seeds, or --model with --text",
        figure=("local_isotropy", "isoscore"),
        cells=("decoder",),
        seconds=3,
        sources=("openai-community/gpt2",),
    ),
    Claim(
        "S5",
        PAPER,
        "Anisotropy grows with training.",
        {"lab": growth_evidence, "checkpoints": growth_evidence},
        published=every(
            above("growth", 0.0, "last − first, mean over layers"),
            above("order", 0.5, "rank correlation with the step", CORRELATION),
        ),
        control=every(
            *(
                condition
                for name, words in (("_no_sink", "without flagged tokens"), ("_tyler", _TYLERS))
                for condition in (
                    above(f"growth{name}", 0.0, f"last − first {words}"),
                    above(f"order{name}", 0.5, f"rank correlation with the step {words}", CORRELATION),
                )
            )
        ),
        settle="checkpoints of a long training: --model FOLDER --revisions 'step*' --text FILE",
        figure=(_SHARE, _TYLER),
        cells=("decoder",),
        seconds=35,
        sources=("EleutherAI/pythia-2.8b",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "S6",
        PAPER,
        "The causal mask causes the difference between decoders and encoders.",
        {"lab": mask_evidence},
        published=every(above("causal", 0.05, "bell of the decoder − bell of the encoder")),
        control=every(above("mask_alone", 0.05, "bell causal − bell bidirectional, both trained on masked tokens")),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=(_SHARE,),
        cells=("decoder", "causal-masked", "encoder", "uniform", "no-attention"),
        seconds=8,
    ),
)
