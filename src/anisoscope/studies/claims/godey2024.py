"""A: Godey et al. 2024, Anisotropy Is Inherent to Self-Attention: cosine, drift, and what sharpens attention."""

from __future__ import annotations

from math import log
from statistics import fmean

from torch import Tensor

from anisoscope.measurement.measure_weights import vocabulary_matrices
from anisoscope.records import Record
from anisoscope.studies.claims.attention_variants import CAUSES, VARIANTS, causes_evidence, variants_evidence
from anisoscope.studies.claims.claim import SIMULATION, Claim, Evidence
from anisoscope.studies.claims.conditions import Condition, Rule, above, below, either, every, gate
from anisoscope.studies.claims.curve_shapes import slope
from anisoscope.studies.claims.estimate import NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.gates import LEARNT, learnt, matched
from anisoscope.studies.claims.given_models import GivenModel
from anisoscope.studies.claims.heads_evidence import LEARNED, PARALLEL, heads_evidence, heads_on_lab
from anisoscope.studies.claims.modality_evidence import EXPLAINED, HIGH, cosine_evidence, drift_evidence
from anisoscope.studies.claims.modality_panel import SOURCES, TRANSFORMERS
from anisoscope.studies.claims.run_sizes import SHORT_DECODER
from anisoscope.studies.claims.run_view import estimate_record
from anisoscope.studies.claims.subjects import Subjects
from anisoscope.studies.claims.untrained_block import (
    BIASES,
    PUBLISHED,
    SETTINGS,
    BlockPass,
    BlockSetting,
    pass_through_block,
)

PAPER = "godey2024"


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
        _quantity_name("raises", setting): Estimate.over(
            [fmean(p.cosine_out - p.cosine_in for p in seed) for seed in by_seed]
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


# --- A6: other attentions -----------------------------------------------------------------------------------------


def _sharp_without_drift(end: str, words: str) -> Rule:
    """At least one variant is as sharp as softmax, or sharper, with less than half of its drift.

    Softmax itself must have become sharp, or there is nothing to be as sharp as.
    """
    return either(
        *(
            every(
                gate("softmax_entropy", 0.8, "entropy of softmax attention relative to even attention", below=True),
                learnt(cell),
                *([matched(cell)] if end else []),
                below(f"entropy_{cell}{end}", 0.05, f"{cell}: entropy beyond softmax's{words}", holds=-0.05, fails=0.5),
                below(
                    f"drift_{cell}{end}",
                    0.5,
                    f"{cell}: drift over softmax's{words}",
                    NOT_NEGATIVE,
                    holds=0.2,
                    fails=1.0,
                ),
            )
            for cell in VARIANTS
        )
    )


# --- the claims ---------------------------------------------------------------------------------------------------

_ALL = {"holds": 0.9, "fails": 0.1}  # shares of layers or models
_MODALITIES = gate("modalities", 3, "modalities with trained models: text, characters, sound, images")


def _raising(setting: BlockSetting) -> Condition:
    name = _quantity_name("raises", setting)
    return above(name, 0.0, f"rise of the cosine in the block, {setting}", holds=0.02, fails=0.0)


def _sharpening(setting: BlockSetting) -> Condition:
    name = _quantity_name("entropy", setting)
    return below(name, 0.0, f"slope of entropy on log N, {setting}", holds=-0.05, fails=0.0)


CLAIMS = (
    Claim(
        "A1",
        PAPER,
        "Mean cosine is high in most layers of transformers of text, characters, sound and images; less so in CNNs.",
        {"lab": cosine_evidence, "model": cosine_evidence},
        published=every(
            *(
                above(f"share_{m}", 0.5, f"{m}: share of layers with cosine > {HIGH}", SHARE, **_ALL)
                for m in TRANSFORMERS
            ),
            above("cnn_lower", 0.0, "lowest transformer − highest convolutional network", holds=0.2, fails=-0.1),
        ),
        control=every(
            *(
                above(
                    f"risen_{m}",
                    0.5,
                    f"{m}: share of layers {HIGH} above random initialisation, across documents",
                    SHARE,
                    **_ALL,
                )
                for m in TRANSFORMERS
            ),
            above(
                "cnn_lower_risen",
                0.0,
                "what training adds: lowest transformer − highest convolutional network",
                holds=0.2,
                fails=-0.1,
            ),
        ),
        settle="trained weights of every modality: "
        + " ".join(f"--model {sources[0]}" for sources in SOURCES.values())
        + " with --text, --images and --audio",
        figure=("mean_cosine",),
        cells=("decoder", "words"),
        seconds=10,
        sources=tuple(source for sources in SOURCES.values() for source in sources),
        gates=(LEARNT, _MODALITIES),
        plain="States point in similar directions in every kind of transformer, less so in CNNs",
        found="mean cosine above 0.2 in most layers, all modalities",
    ),
    Claim(
        "A2",
        PAPER,
        "Drift, the norm of the mean, explains the cosine in many models, but not in all.",
        {"lab": drift_evidence, "model": drift_evidence},
        published=every(
            above("significant", 0.5, "share of models in which both rise together, p < .05", SHARE, **_ALL)
        ),
        control=every(
            above(
                "explained",
                0.5,
                f"share of models in which the mean explains more than {EXPLAINED} of the cosine",
                SHARE,
                **_ALL,
            ),
            below("least_explained", EXPLAINED, "explained share where it is least", holds=0.5, fails=0.95),
        ),
        settle="more models: repeat --model",
        figure=("drift_norm", "mean_cosine", "drift_correlation", "cosine_around_norms"),
        cells=("decoder", "words", "causal-masked", "encoder"),
        seconds=10,
        sources=tuple(source for sources in SOURCES.values() for source in sources),
        gates=(LEARNT, gate("states_of_models", 11, "fewest hidden states of a model")),
        plain="A common shift of all states explains this in many models, not in all",
        found="strong correlation in most, not in all",
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
        plain="Even an untrained layer makes states with a common shift more alike",
        found="yes, with growing shift",
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
        plain="A common shift makes attention sharper",
        found="yes (post-norm, as in BERT)",
    ),
    Claim(
        "A5",
        PAPER,
        "During training, queries and keys drift in parallel directions while attention sharpens.",
        {"lab": heads_on_lab, "checkpoints": heads_evidence},
        published=every(above("parallel", 0.5, "share of heads with |cos(q̄, k̄)| up and entropy down", SHARE, **_ALL)),
        control=every(
            above("budget", 0.0, "growth of the mean query's share in the logit budget", holds=0.1, fails=0.0),
            above("ablation", 0.1, "relative rise of entropy without the mean query", holds=0.3, fails=0.0),
        ),
        settle="checkpoints of a model: --model LIST --text FILE, LIST a file of ids such as "
        "google/multiberts-seed_0-step_20k, one per line",
        figure=(PARALLEL, "mean_entropy", "logit_budget"),
        cells=(LEARNED, "decoder", "encoder"),
        seconds=20,
        sources=("EleutherAI/pythia-70m",),
        revisions="step0,step1000,step8000,step43000,step143000",
        gates=(LEARNT,),
        plain="Queries and keys drift the same way while attention becomes sharp",
        found="in the heads of MultiBERTs",
    ),
    Claim(
        "A6",
        PAPER,
        "Sharp attention can appear without drift.",
        {"lab": variants_evidence},
        published=_sharp_without_drift("", ""),
        control=_sharp_without_drift("_matched", " at matched loss"),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("attention_entropy", "q_drift", "k_drift"),
        cells=(SHORT_DECODER, *VARIANTS),
        seconds=8,
        existential=True,
        plain="Attention can be sharp without any drift",
        found="left open",
    ),
    Claim(
        "A7",
        PAPER,
        "Self-attention raises the cosine of states more than the objective or the token distribution does.",
        {"lab": causes_evidence},
        published=every(
            above("attention", 0.0, "cosine with softmax attention − without attention", holds=0.2, fails=0.0),
            above(
                "over_objective", 0.0, "effect of attention − that of the objective, absolute", holds=0.15, fails=-0.1
            ),
            above(
                "over_tokens",
                0.0,
                "effect of attention − that of the token distribution, absolute",
                holds=0.15,
                fails=-0.1,
            ),
        ),
        control=every(
            above(
                "attention_matched",
                0.0,
                "the same without flagged tokens, at equal loss",
                holds=0.2,
                fails=0.0,
            ),
            above(
                "over_objective_no_sink", 0.0, "beyond the objective, without flagged tokens", holds=0.15, fails=-0.1
            ),
            above("over_tokens_no_sink", 0.0, "beyond the token distribution, likewise", holds=0.15, fails=-0.1),
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("cosine_by_cause",),
        cells=CAUSES,
        seconds=6,
        gates=(gate("learnt_causes", 0.3, "loss of token frequencies − loss of the worst training, in nats"),),
        plain="Attention itself, not the task or the words, makes states alike (the title of the paper)",
        found="argued from untrained blocks and other modalities",
    ),
)
