"""S: Razzhigaev et al. 2023, The Shape of Learning: a bell over layers, a dimension that rises and falls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, Claim, Estimate, Evidence, above, below, every, gate
from anisoscope.studies.claims.dimension_evidence import (
    HIGHEST,
    SCALE,
    dimension_on_checkpoints,
    dimension_on_lab,
    low_on_lab,
    low_on_model,
)
from anisoscope.studies.claims.given import Given, ran_on
from anisoscope.studies.claims.looks import BELL, LOCAL, REMOVAL, SHAPE, TYLER
from anisoscope.studies.claims.readings import (
    Missing,
    RunView,
    Units,
    drawn,
    estimate,
    estimates,
    figure_records,
    least_favourable,
    profile_records,
)
from anisoscope.studies.claims.statistics import bell, span, spearman

PAPER = "razzhigaev2023"
_SHARE, _TYLER = "spectral_anisotropy", "tyler_share"
Statistic = Callable[[RunView], float]
_KINDS = ("", "_no_sink", "_tyler")  # of a quantity: all tokens, without flagged ones, of Tyler's matrix

# λ1/Σλ over hidden states as the paper's figures have it, the embedding first; None where no source gives a value.
_FIGURES: dict[str, tuple[float | None, ...]] = {
    "GPT-2, published": (0.06, 0.30, 0.97, *[0.98] * 9, 0.83),
    "BERT, published, least": (0.01,) * 13,
    "BERT, published, most": (0.04,) * 13,
    "OPT-125m, published": (0.98, *[None] * 5, 0.995, *[None] * 5, 0.96),
    "Llama-2-7B, published": (*[None] * 11, *[1.0] * 11, *[None] * 10, 0.06),
}


def _of_profile(shape: Callable[[Sequence[float]], float], metric: str, tokens: str = "all") -> Statistic:
    return lambda reading: shape(reading.profile(metric, tokens))


def _mean(metric: str, tokens: str = "all") -> Statistic:
    return _of_profile(fmean, metric, tokens)


# --- S1, S6: the bell ---------------------------------------------------------------------------------------------


Look = Callable[[], Units]  # taken when it is asked for: a text may be too short for it


def _bells(name: str, shape: Callable[[Sequence[float]], float], look: Look, tyler: Look) -> dict[str, Estimate]:
    """A shape of the profile with all tokens, without flagged ones, and of Tyler's matrix."""
    return estimates(
        {
            name: lambda: estimate(_of_profile(shape, _SHARE), look()),
            f"{name}_no_sink": lambda: estimate(_of_profile(shape, _SHARE, "no-sink"), look()),
            f"{name}_tyler": lambda: estimate(_of_profile(shape, _TYLER, "no-sink"), tyler()),
        }
    )


def _profiles(look: Look, tyler: Look, of: str) -> list[Record]:
    """The figure of one model: λ1/Σλ over hidden states with and without flagged tokens, and Tyler's."""
    out: list[Record] = []
    for take, metric, tokens in ((look, _SHARE, "all"), (look, _SHARE, "no-sink"), (tyler, _TYLER, "no-sink")):
        try:
            out += profile_records(take(), metric, of=of, tokens=tokens)
        except Missing:
            continue
    return out


def _over_batches(model: Given) -> list[Record]:
    """The mean over batches with its error, as published; pooled values are what is judged."""
    of = f"{model.name}, mean over batches of {model.size.batch_tokens:,} tokens"
    return [
        replace(record, variant={"of": of}, run="")
        for record in model.run(BELL).records()
        if record.metric == _SHARE and record.variant.get("of batches") == "mean"
    ]


def _published(places: int) -> list[Record]:
    """The published profiles at as many depths as the models here have."""
    out = []
    for name, values in _FIGURES.items():
        for place in range(places):
            value = values[round(place * (len(values) - 1) / (places - 1))]
            if value is not None:
                site = "embed" if place == 0 else f"resid.{place - 1}"
                out.append(Record(site, _SHARE, value, variant={"of": name}, note="at equal relative depth"))
    return out


def _places(looks: Sequence[Units]) -> int:
    return max(len((look.whole or look.parts[0]).profile(_SHARE)) for look in looks)


def _bell_on_lab(bench: Bench) -> Evidence:
    lab = bench.lab
    looks = {cell: (partial(lab.last, cell, SHAPE), partial(lab.last, cell, TYLER)) for cell in ("decoder", "encoder")}
    found = _bells("bell", bell, *looks["decoder"]) | _bells("range", span, *looks["encoder"])
    records = [record for cell, pair in looks.items() for record in _profiles(*pair, cell)]
    records += figure_records(lab.last("decoder", REMOVAL), REMOVAL.metrics, of="decoder")
    records += _published(_places([look() for look, _ in looks.values()]))
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _bell_on_models(bench: Bench) -> Evidence:
    each: list[dict[str, Estimate]] = []
    records: list[Record] = []
    for model in bench.models:
        look, tyler = (partial(model.look, kind) for kind in (BELL, TYLER))
        each.append(_bells("bell", bell, look, tyler) if model.decoder else _bells("range", span, look, tyler))
        records += _profiles(look, tyler, model.name) + _over_batches(model)
        records += figure_records(look(), REMOVAL.metrics, of=model.name)
    found = least_favourable(each, highest=[f"range{kind}" for kind in _KINDS])
    absent = {
        name: why
        for name, decoder, why in (("bell", True, "no decoder was given"), ("range", False, "no encoder was given"))
        if all(model.decoder != decoder for model in bench.models)
    }
    left_out = {f"{name}{kind}": why for name, why in absent.items() for kind in _KINDS}
    records += _published(_places([model.look(BELL) for model in bench.models]))
    return Evidence(ran_on(bench.models), MODEL, found, left_out, tuple(records))


def _mask_on_lab(bench: Bench) -> Evidence:
    lab = bench.lab
    looks = {cell: lab.last(cell, SHAPE) for cell in ("decoder", "causal-masked", "encoder", "uniform", "no-attention")}

    def apart(a: str, b: str) -> Estimate:
        height = _of_profile(bell, _SHARE)
        return estimate(lambda one, other: height(one) - height(other), looks[a], looks[b])

    found = {
        "causal": apart("decoder", "encoder"),
        "mask_alone": apart("causal-masked", "encoder"),
    }
    records = [record for cell, look in looks.items() for record in profile_records(look, _SHARE, of=cell)]
    return Evidence(bench.said(), LAB, found, records=tuple(records))


# --- S4, S5 -------------------------------------------------------------------------------------------------------


def _locally(look: Units, of: str) -> tuple[dict[str, Estimate], list[Record]]:
    def over_global(reading: RunView) -> float:
        return fmean(reading.profile("local_isotropy")) - fmean(reading.profile("isoscore"))

    def over_gaussian(reading: RunView) -> float:
        return fmean(entry.value - (entry.null or 0.0) for entry in reading.find("local_isotropy"))

    made = {"over_global": lambda: estimate(over_global, look), "over_gaussian": lambda: estimate(over_gaussian, look)}
    return estimates(made), figure_records(look, LOCAL.metrics, of=of)


def _local_on_lab(bench: Bench) -> Evidence:
    found, records = _locally(bench.lab.last("decoder", LOCAL), "decoder")
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _local_on_model(bench: Bench) -> Evidence:
    model = bench.models[0]
    found, records = _locally(model.look(LOCAL), model.name)
    return Evidence(ran_on([model]), MODEL, found, records=tuple(records))


def _growth(
    shape: Sequence[Units], tyler: Sequence[Units], steps: Sequence[int]
) -> tuple[dict[str, Estimate], list[Record]]:
    """Last less first and the rank correlation with the step, of the mean over layers, three times."""
    ways = {"": (shape, _SHARE, "all"), "_no_sink": (shape, _SHARE, "no-sink"), "_tyler": (tyler, _TYLER, "no-sink")}
    made: dict[str, Callable[[], Estimate]] = {}
    records: list[Record] = []
    for name, (series, metric, tokens) in ways.items():
        value = _mean(metric, tokens)
        made[f"growth{name}"] = partial(estimate, lambda *rs, value=value: value(rs[-1]) - value(rs[0]), *series)
        made[f"order{name}"] = partial(
            estimate, lambda *rs, value=value: spearman(steps, list(map(value, rs))), *series
        )
        for units, step in zip(series, steps, strict=True):
            try:
                records.append(drawn(estimate(value, units), metric, of=f"mean over layers, {tokens}", step=step))
            except Missing:
                continue
    return estimates(made), records


def _growth_on_lab(bench: Bench) -> Evidence:
    lab = bench.lab
    found, records = _growth(lab.series("decoder", SHAPE), lab.series("decoder", TYLER), bench.size.looks)
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _growth_on_checkpoints(bench: Bench) -> Evidence:
    shape, tyler = ([model.look(kind) for model in bench.series] for kind in (SHAPE, TYLER))
    found, records = _growth(shape, tyler, [model.step for model in bench.series])
    return Evidence(ran_on(bench.series), MODEL, found, records=tuple(records))


# --- the claims ---------------------------------------------------------------------------------------------------

_CHECKPOINTS = "step0,step128,step1000,step8000,step43000,step143000"
_TYLERS = "of Tyler's matrix, without them"
CLAIMS = (
    Claim(
        "S1",
        PAPER,
        "Decoders: anisotropy is a bell over the layers, highest in the middle; encoders: it is flat.",
        {"lab": _bell_on_lab, "model": _bell_on_models},
        published=every(
            above("bell", 0.1, "decoder, middle third − higher end sixth of λ1/Σλ"),
            below("range", 0.1, "encoder, range over layers"),
        ),
        control=every(
            above("bell_no_sink", 0.1, "decoder's bell without flagged tokens"),
            below("range_no_sink", 0.1, "encoder's range without flagged tokens"),
            above("bell_tyler", 0.1, f"decoder's bell {_TYLERS}"),
            below("range_tyler", 0.1, f"encoder's range {_TYLERS}"),
        ),
        settle="give a decoder and an encoder: --model gpt2 --model bert-base-uncased --text FILE",
        figure=(_SHARE, _TYLER, "removal_curve"),
        cells=("decoder", "encoder"),
        seconds=12,
        sources=("openai-community/gpt2", "google-bert/bert-base-uncased"),
    ),
    Claim(
        "S2",
        PAPER,
        "Intrinsic dimension rises early in training, then falls.",
        {"lab": dimension_on_lab, "checkpoints": dimension_on_checkpoints},
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
        settle="give checkpoints of a long training: --model EleutherAI/pythia-70m --revisions 'step*' --text FILE",
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
        {"lab": low_on_lab, "model": low_on_model},
        published=every(below("highest_paper", HIGHEST, "highest dimension of a layer, published estimator")),
        control=every(
            gate("gaussian", HIGHEST, "dimension read off N(0, C) at the same n"),
            below("highest", HIGHEST, "highest dimension of a layer, duplicates removed"),
        ),
        settle="a model whose Gaussian twin reads above 60 at this n: a wide one, on many tokens",
        figure=("two_nn_paper",),
        cells=("decoder",),
        seconds=3,
        sources=("openai-community/gpt2",),
    ),
    Claim(
        "S4",
        PAPER,
        "Clusters are isotropic inside, although the whole is not.",
        {"lab": _local_on_lab, "model": _local_on_model},
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
        {"lab": _growth_on_lab, "checkpoints": _growth_on_checkpoints},
        published=every(
            above("growth", 0.0, "last − first, mean over layers"),
            above("order", 0.5, "rank correlation with the step"),
        ),
        control=every(
            *(
                condition
                for name, words in (("_no_sink", "without flagged tokens"), ("_tyler", _TYLERS))
                for condition in (
                    above(f"growth{name}", 0.0, f"last − first {words}"),
                    above(f"order{name}", 0.5, f"rank correlation with the step {words}"),
                )
            )
        ),
        settle="give checkpoints of a long training: --model FOLDER --revisions 'step*' --text FILE",
        figure=(_SHARE, _TYLER),
        cells=("decoder",),
        seconds=35,
        sources=("EleutherAI/pythia-2.8b",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "S6",
        PAPER,
        "The causal mask is what separates the two shapes.",
        {"lab": _mask_on_lab},
        published=every(above("causal", 0.05, "bell of the decoder − bell of the encoder")),
        control=every(above("mask_alone", 0.05, "bell causal − bell bidirectional, both trained on masked tokens")),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=(_SHARE,),
        cells=("decoder", "causal-masked", "encoder", "uniform", "no-attention"),
        seconds=8,
    ),
)
