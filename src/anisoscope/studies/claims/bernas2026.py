"""T: Bernas et al. 2026, Revisiting Anisotropy: do directions fitted on activations carry the gradients?"""

from __future__ import annotations

from typing import Any

from anisoscope.studies.claims.claim import Claim
from anisoscope.studies.claims.conditions import above, below, every
from anisoscope.studies.claims.curvature_evidence import VISIBLE, pinning_evidence
from anisoscope.studies.claims.estimate import CORRELATION, SHARE
from anisoscope.studies.claims.frequency_evidence import frequency_evidence
from anisoscope.studies.claims.gates import ENDED, LEARNT, SETTLED, TYPES, learnt, matched
from anisoscope.studies.claims.gradient_energy_evidence import (
    KINDS_OF_MODEL,
    PROJECTED,
    anisotropy_evidence,
    energy_on_lab,
    energy_on_model,
    fading_on_checkpoints,
    fading_on_lab,
    families_on_lab,
    families_on_models,
    movement_on_lab,
)

PAPER = "bernas2026"
_CHECKPOINTS = "step1000,step8000,step43000,step100000,step143000"
_ENRICHED = "share of layers and early steps that beat all 20 normal controls"
_LOCAL: dict[str, Any] = {"holds": 0.03, "fails": 0.0}  # planted local shares of the simulations in docs/tangent.md
CLAIMS = (
    Claim(
        "T1",
        PAPER,
        "Low-rank directions of activations capture unusually much of the true gradients.",
        {"lab": energy_on_lab, "model": energy_on_model},
        published=every(above("enriched", 0.8, _ENRICHED, SHARE, holds=1.0, fails=0.3)),
        control=every(
            above("local", 0.0, "energy in the basis of the own patch − of other patches", **_LOCAL),
            above("local_untied", 0.0, "the same with untied embeddings", **_LOCAL),
            above("beyond_start", 0.0, "log enrichment − that before training", holds=0.3, fails=0.0),
            above("slope", 0.0, "slope β of gradient energy on variance", holds=0.3, fails=0.0),
            above("beyond_coordinates", 0.0, "energy − that of permuted coordinates", holds=0.2, fails=0.0),
        ),
        settle="--model HuggingFaceTB/SmolLM2-360M --text FILE, best with early checkpoints (--revisions)",
        figure=("energy_by_gradient", "local_excess", "gradient_energy", "transfer_slope"),
        cells=("decoder", "untied"),
        seconds=40,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
        gates=(LEARNT, SETTLED),
        plain="Where activations vary most, there the learning signal points too",
        found="far above random directions, in every model",
    ),
    Claim(
        "T2",
        PAPER,
        "These directions also capture a larger share of the gradients' anisotropy.",
        {"lab": anisotropy_evidence, "model": anisotropy_evidence},
        published=every(
            above(
                "removed",
                0.8,
                "share of layers in which removing the basis makes gradients rounder, and more so than a control",
                SHARE,
                holds=1.0,
                fails=0.3,
            )
        ),
        control=every(
            above(
                "beyond_other_layer",
                0.0,
                "share of the achievable gain, basis of the layer − of another layer",
                holds=0.2,
                fails=0.0,
            )
        ),
        settle="--model HuggingFaceTB/SmolLM2-360M --text FILE",
        figure=("achieved_gain", "anisotropy_share"),
        cells=("decoder",),
        seconds=6,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
        gates=(LEARNT, SETTLED),
        plain="Those directions carry the unevenness of the learning signal",
        found="removing them evens gradients out more than controls do",
    ),
    Claim(
        "T3",
        PAPER,
        "These directions capture gradients in encoders and decoders, more weakly in encoders.",
        {"lab": families_on_lab, "model": families_on_models},
        published=every(
            above("enriched_decoder", 0.8, f"decoder: {_ENRICHED}", SHARE, holds=1.0, fails=0.3),
            above("enriched_encoder", 0.8, f"encoder: {_ENRICHED}", SHARE, holds=1.0, fails=0.3),
            above("ratio", 0.0, "log tangent/normal ratio, decoder − encoder", holds=0.3, fails=0.0),
        ),
        control=every(
            *(above(f"local_{cell}", 0.0, f"{cell}: own patch − other patches", **_LOCAL) for cell in KINDS_OF_MODEL)
        ),
        settle="a decoder and an encoder: --model EleutherAI/pythia-160m --model EuroBERT/EuroBERT-210m --text FILE",
        figure=("gradient_enrichment", "local_excess"),
        cells=KINDS_OF_MODEL,
        seconds=40,
        sources=("EleutherAI/pythia-160m", "almanach/moderncamembert-base"),
        gates=(LEARNT, SETTLED),
        plain="This holds for decoders and encoders, more weakly in encoders",
        found="both, ratios lower in encoders",
    ),
    Claim(
        "T4",
        PAPER,
        "These directions capture gradients most strongly early in training, more weakly late.",
        {"lab": fading_on_lab, "checkpoints": fading_on_checkpoints},
        published=every(above("frozen", 0.0, "log ratio of bases frozen at 30 %, early − late", holds=0.3, fails=0.0)),
        control=every(
            below("refreshed", 0.0, "slope of log enrichment on log step, bases refreshed", holds=-0.15, fails=0.05),
            below("refreshed_unit", 0.0, "the same with gradients of unit length", holds=-0.15, fails=0.05),
        ),
        settle="checkpoints: --model EleutherAI/pythia-160m --revisions 'step*' --text FILE",
        figure=("log_enrichment",),
        cells=("decoder",),
        seconds=30,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
        gates=(LEARNT, SETTLED, ENDED),
        plain="The effect is strongest early in training and fades",
        found="strong in the first 30 %, weaker later",
    ),
    Claim(
        "T5",
        PAPER,
        "Frequent tokens show the strongest enrichment, and lie nearer to the centre.",
        {"lab": frequency_evidence, "model": frequency_evidence},
        published=every(
            below(
                "correlation",
                -0.2,
                "correlation of log frequency with the distance of a type's centroid from the mean",
                CORRELATION,
                holds=-0.5,
                fails=0.0,
            ),
            above("strata", 0.0, "energy of frequent − of rare tokens", holds=0.05, fails=0.0),
        ),
        control=every(
            below(
                "split_half",
                0.0,
                "the same correlation from split halves, equal n",
                CORRELATION,
                holds=-0.25,
                fails=0.0,
            ),
            above(
                "strata_unit",
                0.0,
                "energy of frequent − of rare tokens, gradients of unit length",
                holds=0.03,
                fails=0.0,
            ),
        ),
        settle="--model EleutherAI/pythia-160m --text FILE",
        figure=("frequency_correlation", "gradient_energy"),
        cells=("words",),
        seconds=6,
        sources=("EleutherAI/pythia-160m",),
        gates=(LEARNT, TYPES),
        plain="Frequent tokens sit nearer to the centre and follow the effect most",
        found="correlation about −0.5 in decoders",
    ),
    Claim(
        "T6",
        PAPER,
        "Frequency-biased sampling hides curvature; normal parts are of second order in the local radius.",
        {"lab": pinning_evidence, "model": pinning_evidence},
        published=every(
            above("order", 1.8, "slope of log(normal/tangent variance) on log radius", holds=2.0, fails=1.0),
            below("order", 2.2, "the same slope", holds=2.0, fails=1.0),
            above(
                "biased",
                0.0,
                "drop of curvature's signal-to-noise from s = 0 to s = 1, frequent tokens pinned",
                holds=0.5,
                fails=0.0,
            ),
        ),
        control=every(
            LEARNT,
            TYPES,
            VISIBLE,
            below(
                "radius",
                0.0,
                "correlation of a type's log frequency with the log of its radius about its own centroid, equal n",
                CORRELATION,
                holds=-0.25,
                fails=0.0,
            ),
            above(
                "local_drop",
                0.2,
                "drop of curvature's signal-to-noise within types, from rare to frequent types",
                holds=0.5,
                fails=0.0,
            ),
        ),
        settle="--model EleutherAI/pythia-160m --text FILE --size paper: a long text, so that many types occur often",
        figure=("radius_correlation", "local_curvature", "curvature_snr", "curvature_visibility", "curvature_drop"),
        cells=("words",),
        seconds=3,
        sources=("EleutherAI/pythia-160m",),
        plain="Uneven sampling hides how curved the cloud is, because frequent words are pinned to their places",
        found="a theorem; slope 2 (as published: holds in the theory's own model)",
    ),
    Claim(
        "T7",
        PAPER,
        "Training amplifies tangent directions, and this drives anisotropy.",
        {"lab": movement_on_lab},
        published=every(
            above(
                "change",
                0.0,
                "share of the activations' change in the basis − share of their own variance in it",
                holds=0.05,
                fails=0.0,
            )
        ),
        control=every(
            *map(learnt, PROJECTED),
            matched("random-only"),
            above(
                "drives",
                0.0,
                "anisotropy at equal loss, tangent part of the gradient alone − random part alone",
                holds=0.1,
                fails=0.0,
            ),
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("anisotropy_at_equal_loss", "change_in_basis"),
        cells=("decoder", *PROJECTED),
        seconds=20,
        gates=(learnt("decoder"),),
        plain="Learning moves states along those directions, and this makes them anisotropic",
        found="amplified along training",
    ),
)
