"""A: Godey et al. 2024, Anisotropy Is Inherent to Self-Attention: cosine, drift, and what sharpens attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from statistics import fmean
from typing import Any

from torch import Tensor

from anisoscope.measurement.measure_weights import vocabulary_matrices
from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench, Lab
from anisoscope.studies.claims.claim import (
    LAB,
    MODEL,
    SIMULATION,
    Claim,
    Condition,
    Estimate,
    Evidence,
    Rule,
    above,
    below,
    either,
    every,
)
from anisoscope.studies.claims.given import Given, groups_of, ran_on
from anisoscope.studies.claims.looks import HEADS
from anisoscope.studies.claims.modalities import EXPLAINED, HIGH, cosine_evidence, drift_evidence
from anisoscope.studies.claims.panel import SOURCES, TRANSFORMERS
from anisoscope.studies.claims.readings import (
    RunView,
    Units,
    drawn,
    estimate,
    estimate_share,
    estimates,
    figure_records,
)
from anisoscope.studies.claims.states import cosines_before_rotation, entropies
from anisoscope.studies.claims.statistics import parallel_drift, slope
from anisoscope.studies.claims.untrained import BIASES, PUBLISHED, SETTINGS, Passed, Setting, passed

PAPER = "godey2024"
VARIANTS = ("sigmoid", "off-by-one", "cosine")
_PARALLEL = "parallel_means"  # the metric of |cos(q̄, k̄)| over training
_TAIL = 0.95  # share of the seeds in which a block must raise the cosine


# --- A3, A4: an untrained block -----------------------------------------------------------------------------------

Passes = dict[Setting, list[list[Passed]]]  # by seed, then by bias


def _passes(bench: Bench, seeds: int) -> Passes:
    """Every setting at every bias and seed; tokens come from the table of the model given, if there is one."""
    table = _table(bench.models[0]) if bench.given else None
    width, sequences, length = bench.size.block
    shape = (width if table is None else table.shape[1], sequences, length)
    bench.lab.say("untrained blocks")
    return {
        setting: [[passed(shape, bias, setting, seed, table) for bias in BIASES] for seed in range(seeds)]
        for setting in SETTINGS
    }


def _table(model: Given) -> Tensor:
    """The input embeddings of a model."""
    return next(iter(vocabulary_matrices(model.open().model).values())).cpu()


def _block_evidence(bench: Bench, found: dict[str, Estimate], passes: Passes) -> Evidence:
    width, sequences, length = bench.size.block
    source = f"the table of {bench.models[0].name}" if bench.given else "a table of standard deviation 0.02"
    ran = (
        f"blocks of BERT's initialisation, {len(passes[PUBLISHED])} seeds, {sequences} × {length} tokens from {source}"
    )
    ran = ran if bench.given else f"{ran}, width {width}"
    return Evidence(ran, SIMULATION, found, records=tuple(_block_records(passes)))


def _block_records(passes: Passes) -> list[Record]:
    """Cosine and norm in and out, entropy, spread of the logits and largest weight by the bias, in hundredths."""
    return [
        drawn(
            Estimate.over([getattr(seed[place], name) for seed in by_seed]),
            f"block_{name}",
            of=str(setting),
            index=round(100 * bias),
        )
        for setting, by_seed in passes.items()
        for place, bias in enumerate(BIASES)
        for name in Passed.__dataclass_fields__
    ]


def _raises(bench: Bench) -> Evidence:
    passes = _passes(bench, bench.size.blocks)
    found = {
        _named("raises", setting): Estimate.of_flags(
            [fmean(p.cosine_out - p.cosine_in for p in seed) > 0 for seed in by_seed]
        )
        for setting, by_seed in passes.items()
    }
    return _block_evidence(bench, found, passes)


def _sharpens(bench: Bench) -> Evidence:
    passes = _passes(bench, bench.size.draws)
    biases = [log(bias) for bias in BIASES]
    found = {
        _named("entropy", setting): Estimate.over([slope(biases, [p.entropy for p in seed]) for seed in by_seed])
        for setting, by_seed in passes.items()
    }
    return _block_evidence(bench, found, passes)


def _named(quantity: str, setting: Setting) -> str:
    return f"{quantity}_{setting.norm_at}_{'normalised' if setting.normalised else 'raw'}"


# --- A5: queries and keys over training ---------------------------------------------------------------------------


def _parallel(first: RunView, last: RunView) -> list[bool]:
    cosine, entropy = ([r.heads(metric) for r in (first, last)] for metric in ("qk_cosine", "attention_entropy"))
    return parallel_drift(cosine, entropy)


def _drifts(
    series: Sequence[Units], steps: Sequence[int], ablation: Estimate
) -> tuple[dict[str, Estimate], list[Record]]:
    first, last = series[0], series[-1]
    found = estimates(
        {
            "parallel": lambda: estimate_share(_parallel, first, last),
            "budget": lambda: estimate(lambda a, b: b.mean("logit_budget") - a.mean("logit_budget"), first, last),
        }
    )
    records = [
        record
        for units, step in zip(series, steps, strict=True)
        for record in (
            *figure_records(units, ("qk_cosine", "logit_budget"), of="heads", step=step),
            drawn(estimate(_mean_size, units), _PARALLEL, of="as attention gets them", step=step),
            drawn(estimate(lambda r: r.mean("attention_entropy"), units), "mean_entropy", of="heads", step=step),
        )
    ]
    return {**found, "ablation": ablation}, records


def _mean_size(reading: RunView) -> float:
    return fmean(map(abs, reading.heads("qk_cosine").values()))


def _evened(model: Any, batches: Any) -> float:
    """How much entropy rises, relative to what it is, when the mean query is taken out of every head."""
    plain, without = (fmean(entropies(model, batches, centred=centred).values()) for centred in (False, True))
    return without / plain - 1


def _heads_on_lab(bench: Bench) -> Evidence:
    lab = bench.lab
    series = lab.series("decoder", HEADS)
    last = bench.size.steps
    ablation = lab.over_seeds(lambda seed: _evened(lab.model("decoder", seed, last), lab.batches("decoder")))
    found, records = _drifts(series, bench.size.looks, ablation)
    for step in bench.size.looks:
        before = lab.over_seeds(partial(_before_rotation, lab, step))
        records.append(drawn(before, _PARALLEL, of="before rotary embedding", step=step))
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _before_rotation(lab: Lab, step: int, seed: int) -> float:
    found = cosines_before_rotation(lab.model("decoder", seed, step), lab.batches("decoder"))
    return fmean(map(abs, found.values()))


def _heads_on_checkpoints(bench: Bench) -> Evidence:
    series, last = bench.series, bench.series[-1]
    opened = last.open()
    groups = groups_of(last.batches(opened))
    ablation = Estimate.over([_evened(opened.model, group) for group in groups], "groups of documents")
    found, records = _drifts([model.look(HEADS) for model in series], [model.step for model in series], ablation)
    return Evidence(ran_on(series), MODEL, found, records=tuple(records))


# --- A6: other attentions -----------------------------------------------------------------------------------------


def drift(reading: RunView) -> float:
    """How long mean query and mean key are in units of the usual length, mean over heads."""
    return (reading.mean("q_drift", **{"in": "rms"}) + reading.mean("k_drift", **{"in": "rms"})) / 2


def _quantity(name: str, variant: RunView, softmax: RunView) -> float:
    """Entropy beyond softmax's, as a share of it, or drift over softmax's."""
    if name == "drift":
        return drift(variant) / drift(softmax)
    return variant.mean("attention_entropy") / softmax.mean("attention_entropy") - 1


def _matched(lab: Lab, cell: str, quantity: str, seed: int) -> float:
    """The comparison at the first looks at which both have the loss that the worse of the two ends with."""
    level = max(lab.loss(cell, seed), lab.loss("decoder", seed))

    def reading(name: str) -> RunView:
        step = next((s for s in lab.size.looks if lab.loss(name, seed, s) <= level), lab.size.steps)
        return lab.reading(name, seed, step, HEADS)

    return _quantity(quantity, reading(cell), reading("decoder"))


def _variants(bench: Bench) -> Evidence:
    lab = bench.lab
    softmax = lab.last("decoder", HEADS)
    found: dict[str, Estimate] = {}
    records = figure_records(softmax, ("attention_entropy", "q_drift", "k_drift"), of="softmax")
    for cell in VARIANTS:
        look = lab.last(cell, HEADS)
        for quantity in ("entropy", "drift"):
            found |= estimates(
                {
                    f"{quantity}_{cell}": partial(estimate, partial(_quantity, quantity), look, softmax),
                    f"{quantity}_{cell}_matched": partial(lab.over_seeds, partial(_matched, lab, cell, quantity)),
                }
            )
        records += figure_records(look, ("attention_entropy", "q_drift", "k_drift"), of=cell)
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _sharp_without_drift(end: str, words: str) -> Rule:
    """One of the variants is as sharp as softmax, or sharper, at less than half of its drift."""
    return either(
        *(
            every(
                below(f"entropy_{cell}{end}", 0.05, f"{cell}: entropy beyond softmax's{words}"),
                below(f"drift_{cell}{end}", 0.5, f"{cell}: drift over softmax's{words}"),
            )
            for cell in VARIANTS
        )
    )


# --- the claims ---------------------------------------------------------------------------------------------------


def _raising(setting: Setting) -> Condition:
    return above(_named("raises", setting), _TAIL, f"share of seeds in which the cosine rises, {setting}")


def _sharpening(setting: Setting) -> Condition:
    return below(_named("entropy", setting), 0.0, f"slope of entropy on log N, {setting}")


CLAIMS = (
    Claim(
        "A1",
        PAPER,
        "Mean cosine is high in most layers of transformers of text, characters, sound and images; less so in CNNs.",
        {"lab": cosine_evidence, "model": cosine_evidence},
        published=every(
            *(above(f"share_{m}", 0.5, f"{m}: share of layers with cosine > {HIGH}") for m in TRANSFORMERS),
            above("cnn_lower", 0.0, "lowest transformer − highest convolutional network"),
        ),
        control=every(
            *(
                above(f"risen_{m}", 0.5, f"{m}: share of layers {HIGH} above random initialisation, across documents")
                for m in TRANSFORMERS
            ),
            above("cnn_lower_risen", 0.0, "what training adds: lowest transformer − highest convolutional network"),
        ),
        settle="trained weights of every modality: "
        + " ".join(f"--model {sources[0]}" for sources in SOURCES.values())
        + " with --text, --images and --audio",
        figure=("mean_cosine",),
        cells=("decoder", "words"),
        seconds=10,
        sources=tuple(source for sources in SOURCES.values() for source in sources),
    ),
    Claim(
        "A2",
        PAPER,
        "Drift, the norm of the mean, explains the cosine in many models, not in all.",
        {"lab": drift_evidence, "model": drift_evidence},
        published=every(above("significant", 0.5, "share of models in which both rise together, p < .05")),
        control=every(
            above("explained", 0.5, f"share of models in which the mean explains more than {EXPLAINED} of the cosine"),
            below("least_explained", EXPLAINED, "explained share where it is least"),
        ),
        settle="more models: repeat --model",
        figure=("drift_norm", "mean_cosine", "mean_cosine_centred", "cosine_around_norms"),
        cells=("decoder", "words", "causal-masked", "encoder"),
        seconds=10,
        sources=tuple(source for sources in SOURCES.values() for source in sources),
    ),
    Claim(
        "A3",
        PAPER,
        "An untrained block raises the cosine of inputs that share a bias.",
        {"nothing": _raises, "model": _raises},
        published=every(_raising(PUBLISHED)),
        control=every(*map(_raising, SETTINGS)),
        settle="more seeds, or a wider block (--size paper)",
        figure=("block_cosine_out", "block_cosine_in", "block_norm_out"),
        seconds=1,
    ),
    Claim(
        "A4",
        PAPER,
        "The bias sharpens attention.",
        {"nothing": _sharpens, "model": _sharpens},
        published=every(_sharpening(PUBLISHED)),
        control=every(_sharpening(PUBLISHED), _sharpening(Setting("pre"))),
        settle="more seeds, or a wider block (--size paper)",
        figure=("block_entropy", "block_logit_std", "block_largest"),
        seconds=1,
    ),
    Claim(
        "A5",
        PAPER,
        "In training queries and keys drift in parallel directions while attention sharpens.",
        {"lab": _heads_on_lab, "checkpoints": _heads_on_checkpoints},
        published=every(above("parallel", 0.5, "share of heads with |cos(q̄, k̄)| up and entropy down")),
        control=every(
            above("budget", 0.0, "growth of the mean query's share in the logit budget"),
            above("ablation", 0.1, "relative rise of entropy without the mean query"),
        ),
        settle="checkpoints of a model: --model LIST --text FILE, LIST a file of ids such as "
        "google/multiberts-seed_0-step_20k, one a line",
        figure=(_PARALLEL, "mean_entropy", "qk_cosine", "logit_budget"),
        cells=("decoder",),
        seconds=8,
        sources=("EleutherAI/pythia-70m",),
        revisions="step0,step1000,step8000,step43000,step143000",
    ),
    Claim(
        "A6",
        PAPER,
        "Sharp attention can appear without drift.",
        {"lab": _variants},
        published=_sharp_without_drift("", ""),
        control=_sharp_without_drift("_matched", " at matched loss"),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("attention_entropy", "q_drift", "k_drift"),
        cells=("decoder", *VARIANTS),
        seconds=4,
    ),
)
