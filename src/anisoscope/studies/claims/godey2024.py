"""A: Godey et al. 2024, Anisotropy Is Inherent to Self-Attention: cosine, drift, and what sharpens attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log
from statistics import fmean

from torch import Tensor, nn

from anisoscope.measurement.measure_weights import vocabulary_matrices
from anisoscope.records import Record
from anisoscope.studies.claims.claim import SIMULATION, Claim, Condition, Evidence, Rule, above, below, either, every
from anisoscope.studies.claims.curve_shapes import parallel_drift, slope
from anisoscope.studies.claims.estimate import NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.given_models import GivenModel
from anisoscope.studies.claims.hidden_states import Batches, cosines_before_rotation, entropies
from anisoscope.studies.claims.measurements import HEADS
from anisoscope.studies.claims.modality_evidence import EXPLAINED, HIGH, cosine_evidence, drift_evidence
from anisoscope.studies.claims.modality_panel import SOURCES, TRANSFORMERS
from anisoscope.studies.claims.run_view import (
    RunView,
    Units,
    estimate,
    estimate_record,
    estimate_share,
    estimates,
    figure_records,
)
from anisoscope.studies.claims.subjects import Lab, Subjects, SubjectSource
from anisoscope.studies.claims.untrained_block import (
    BIASES,
    PUBLISHED,
    SETTINGS,
    BlockPass,
    BlockSetting,
    pass_through_block,
)

PAPER = "godey2024"
VARIANTS = ("sigmoid", "off-by-one", "cosine")
_PARALLEL = "parallel_means"  # the metric of |cos(q̄, k̄)| over training
_TAIL = 0.95  # share of the seeds in which a block must raise the cosine


# --- A3, A4: an untrained block -----------------------------------------------------------------------------------

Passes = dict[BlockSetting, list[list[BlockPass]]]  # by seed, then by bias


def _passes(subjects: Subjects, seeds: int) -> Passes:
    """Every setting at every bias and seed; tokens come from the embeddings of the user's model, if there is one."""
    table = _embeddings(subjects.given_models[0]) if subjects.given else None
    width, sequences, length = subjects.size.block
    shape = (width if table is None else table.shape[1], sequences, length)
    subjects.lab.on_status("untrained blocks")
    return {
        setting: [[pass_through_block(shape, bias, setting, seed, table) for bias in BIASES] for seed in range(seeds)]
        for setting in SETTINGS
    }


def _embeddings(model: GivenModel) -> Tensor:
    return next(iter(vocabulary_matrices(model.open().model).values())).cpu()


def _block_evidence(subjects: Subjects, quantities: dict[str, Estimate], passes: Passes) -> Evidence:
    width, sequences, length = subjects.size.block
    source = (
        f"the embeddings of {subjects.given_models[0].name}"
        if subjects.given
        else "embeddings of standard deviation 0.02"
    )
    ran = (
        f"blocks of BERT's initialisation, {len(passes[PUBLISHED])} seeds, {sequences} × {length} tokens from {source}"
    )
    ran = ran if subjects.given else f"{ran}, width {width}"
    return Evidence(ran, SIMULATION, quantities, records=tuple(_block_records(passes)))


def _block_records(passes: Passes) -> list[Record]:
    """Cosine and norm in and out, entropy, spread of the logits and largest weight, by the bias in hundredths."""
    return [
        estimate_record(
            Estimate.over([getattr(seed[number], name) for seed in by_seed]),
            f"block_{name}",
            of=str(setting),
            index=round(100 * bias),
        )
        for setting, by_seed in passes.items()
        for number, bias in enumerate(BIASES)
        for name in BlockPass.__dataclass_fields__
    ]


def _raises(subjects: Subjects) -> Evidence:
    passes = _passes(subjects, subjects.size.blocks)
    quantities = {
        _quantity_name("raises", setting): Estimate.of_flags(
            [fmean(p.cosine_out - p.cosine_in for p in seed) > 0 for seed in by_seed]
        )
        for setting, by_seed in passes.items()
    }
    return _block_evidence(subjects, quantities, passes)


def _sharpens(subjects: Subjects) -> Evidence:
    passes = _passes(subjects, subjects.size.draws)
    biases = [log(bias) for bias in BIASES]
    quantities = {
        _quantity_name("entropy", setting): Estimate.over(
            [slope(biases, [p.entropy for p in seed]) for seed in by_seed]
        )
        for setting, by_seed in passes.items()
    }
    return _block_evidence(subjects, quantities, passes)


def _quantity_name(quantity: str, setting: BlockSetting) -> str:
    return f"{quantity}_{setting.norm_at}_{'normalised' if setting.normalised else 'raw'}"


# --- A5: queries and keys over training ---------------------------------------------------------------------------


def heads_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the drift of queries and keys and the entropy of attention over training (A5)."""
    models = subjects.checkpoints("decoder")
    series = [model.measure(HEADS) for model in models]
    first, last = series[0], series[-1]
    quantities = estimates(
        {
            "parallel": lambda: estimate_share(_parallel, first, last),
            "budget": lambda: estimate(lambda a, b: b.mean("logit_budget") - a.mean("logit_budget"), first, last),
        }
    )
    # `per_unit` has groups of documents where a measurement has blocks of documents
    unit = "seeds" if first.whole is None else "groups of documents"
    quantities["ablation"] = Estimate.over(models[-1].per_unit(_entropy_rise), unit)
    records = [
        record
        for model, units in zip(models, series, strict=True)
        for record in (
            *figure_records(units, ("qk_cosine", "logit_budget"), of="heads", step=model.step),
            *_head_means(units, model.step),
        )
    ]
    return subjects.evidence(models, quantities, records)


def _parallel(first: RunView, last: RunView) -> list[bool]:
    cosine, entropy = ([view.heads(metric) for view in (first, last)] for metric in ("qk_cosine", "attention_entropy"))
    return parallel_drift(cosine, entropy)


def _head_means(units: Units, step: int) -> list[Record]:
    cosine = estimate(lambda view: fmean(map(abs, view.heads("qk_cosine").values())), units)
    entropy = estimate(lambda view: view.mean("attention_entropy"), units)
    return [
        estimate_record(cosine, _PARALLEL, of="as attention gets them", step=step),
        estimate_record(entropy, "mean_entropy", of="heads", step=step),
    ]


def _entropy_rise(model: nn.Module, batches: Batches, _number: int) -> float:
    """Relative rise of the entropy if the mean query is removed from every head."""
    plain, without = (fmean(entropies(model, batches, centred=centred).values()) for centred in (False, True))
    return without / plain - 1


def _heads_on_lab(subjects: Subjects) -> Evidence:
    evidence = heads_evidence(subjects)
    before = [
        estimate_record(
            Estimate.over(model.per_unit(_before_rotation)), _PARALLEL, of="before rotary embedding", step=model.step
        )
        for model in subjects.checkpoints("decoder")
    ]
    return replace(evidence, records=(*evidence.records, *before))


def _before_rotation(model: nn.Module, batches: Batches, _number: int) -> float:
    return fmean(map(abs, cosines_before_rotation(model, batches).values()))


# --- A6: other attentions -----------------------------------------------------------------------------------------


def head_drift(view: RunView) -> float:
    """Return the length of mean query and mean key, relative to the typical length, as a mean over heads."""
    return (view.mean("q_drift", **{"in": "rms"}) + view.mean("k_drift", **{"in": "rms"})) / 2


def _relative(quantity: str, variant: RunView, softmax: RunView) -> float:
    """Entropy relative to softmax's, minus 1; or drift relative to softmax's."""
    if quantity == "drift":
        return head_drift(variant) / head_drift(softmax)
    return variant.mean("attention_entropy") / softmax.mean("attention_entropy") - 1


def _at_equal_loss(lab: Lab, cell: str, quantity: str, seed: int) -> float:
    """The comparison at the first measured steps at which both reach the final loss of the worse one."""
    level = max(lab.loss(cell, seed), lab.loss("decoder", seed))

    def view(name: str) -> RunView:
        steps = lab.size.measured_steps
        step = next((step for step in steps if lab.loss(name, seed, step) <= level), lab.size.steps)
        return lab.view(name, seed, step, HEADS)

    return _relative(quantity, view(cell), view("decoder"))


def _variants(subjects: Subjects) -> Evidence:
    lab = subjects.lab
    softmax = lab.last("decoder").measure(HEADS)
    quantities: dict[str, Estimate] = {}
    records = figure_records(softmax, ("attention_entropy", "q_drift", "k_drift"), of="softmax")
    for cell in VARIANTS:
        units = lab.last(cell).measure(HEADS)
        for quantity in ("entropy", "drift"):
            quantities |= estimates(
                {
                    f"{quantity}_{cell}": partial(estimate, partial(_relative, quantity), units, softmax),
                    f"{quantity}_{cell}_matched": partial(lab.over_seeds, partial(_at_equal_loss, lab, cell, quantity)),
                }
            )
        records += figure_records(units, ("attention_entropy", "q_drift", "k_drift"), of=cell)
    return subjects.evidence([lab.last("decoder")], quantities, records)


def _sharp_without_drift(end: str, words: str) -> Rule:
    """At least one variant is as sharp as softmax, or sharper, with less than half of its drift."""
    return either(
        *(
            every(
                below(f"entropy_{cell}{end}", 0.05, f"{cell}: entropy beyond softmax's{words}"),
                below(f"drift_{cell}{end}", 0.5, f"{cell}: drift over softmax's{words}", NOT_NEGATIVE),
            )
            for cell in VARIANTS
        )
    )


# --- the claims ---------------------------------------------------------------------------------------------------


def _raising(setting: BlockSetting) -> Condition:
    return above(
        _quantity_name("raises", setting), _TAIL, f"share of seeds in which the cosine rises, {setting}", SHARE
    )


def _sharpening(setting: BlockSetting) -> Condition:
    return below(_quantity_name("entropy", setting), 0.0, f"slope of entropy on log N, {setting}")


CLAIMS = (
    Claim(
        "A1",
        PAPER,
        "Mean cosine is high in most layers of transformers of text, characters, sound and images; less so in CNNs.",
        {"lab": cosine_evidence, "model": cosine_evidence},
        published=every(
            *(above(f"share_{m}", 0.5, f"{m}: share of layers with cosine > {HIGH}", SHARE) for m in TRANSFORMERS),
            above("cnn_lower", 0.0, "lowest transformer − highest convolutional network"),
        ),
        control=every(
            *(
                above(
                    f"risen_{m}",
                    0.5,
                    f"{m}: share of layers {HIGH} above random initialisation, across documents",
                    SHARE,
                )
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
        "Drift, the norm of the mean, explains the cosine in many models, but not in all.",
        {"lab": drift_evidence, "model": drift_evidence},
        published=every(above("significant", 0.5, "share of models in which both rise together, p < .05", SHARE)),
        control=every(
            above(
                "explained",
                0.5,
                f"share of models in which the mean explains more than {EXPLAINED} of the cosine",
                SHARE,
            ),
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
        control=every(_sharpening(PUBLISHED), _sharpening(BlockSetting("pre"))),
        settle="more seeds, or a wider block (--size paper)",
        figure=("block_entropy", "block_logit_std", "block_largest"),
        seconds=1,
    ),
    Claim(
        "A5",
        PAPER,
        "During training, queries and keys drift in parallel directions while attention sharpens.",
        {"lab": _heads_on_lab, "checkpoints": heads_evidence},
        published=every(above("parallel", 0.5, "share of heads with |cos(q̄, k̄)| up and entropy down", SHARE)),
        control=every(
            above("budget", 0.0, "growth of the mean query's share in the logit budget"),
            above("ablation", 0.1, "relative rise of entropy without the mean query"),
        ),
        settle="checkpoints of a model: --model LIST --text FILE, LIST a file of ids such as "
        "google/multiberts-seed_0-step_20k, one per line",
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
