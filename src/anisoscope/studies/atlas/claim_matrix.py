"""Claims × models: the published statements that need only a model, judged on the measured profiles of the atlas.

The rules and the judge are those of `claims`. A profile of the atlas has one standard error per layer, from blocks of
documents, and not how the errors of layers go together. Errors of shapes over layers are therefore bounds: errors of an
average are taken as moving together, those of a difference as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import torch

from anisoscope.records import Site
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.inference import spearman, spearman_p
from anisoscope.studies.atlas.atlas_runs import SAMPLE
from anisoscope.studies.atlas.evidence import ModelEvidence, Point
from anisoscope.studies.claims.bell_evidence import distance_from_middle
from anisoscope.studies.claims.claim import CONTROL, MODEL, PUBLISHED, Evidence, Verdict
from anisoscope.studies.claims.claim_tables import markdown_table
from anisoscope.studies.claims.conditions import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED
from anisoscope.studies.claims.curve_shapes import bell, span
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import STATES, gates_left_out
from anisoscope.studies.claims.hidden_states import two_nn
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.modality_evidence import EXPLAINED, HIGH
from anisoscope.studies.claims.modality_panel import AUDIO, CHARACTER, CONVOLUTION, IMAGE, TEXT, TRANSFORMERS
from anisoscope.studies.claims.runner import find_claims

HOLDS, FAILS = REPRODUCED, NOT_REPRODUCED
YES, NO = "yes", "no"  # of a question that no paper answers
OPEN = "–"  # the claim is not about this kind of model, or a number is missing
TOP_SHARE = "spectral_anisotropy"
_UNIT = "blocks of documents"
_SIGNIFICANT = 0.05
_BOUND = 60.0  # the published bound of the intrinsic dimension
# The modalities of the paper on mean cosines. Sequences of residues and of atoms have one token per letter.
_MODALITIES = {
    **dict.fromkeys(("English", "Chinese"), TEXT),
    **dict.fromkeys(("antibodies", "chemistry", "T-cell receptors"), CHARACTER),
    "speech": AUDIO,
    "images": IMAGE,
}


@dataclass(frozen=True)
class MatrixVerdict:
    """What became of a claim on one model: a verdict of `claims`, yes, no or `–`, and the numbers in words."""

    answer: str
    text: str


@dataclass(frozen=True)
class MatrixRow:
    """One line of the matrix: a claim, in words, and what judges it."""

    id: str
    statement: str
    rule: Callable[[ModelEvidence], MatrixVerdict]


# --- S1, S3, A1: one model ----------------------------------------------------------------------------------------


def bell_or_flat(model: ModelEvidence, tokens: str, *, any_depth: bool = False) -> MatrixVerdict:
    """Judge S1 on one model: as published with all tokens, under control without sinks.

    Args:
        model: The model.
        tokens: The token policy.
        any_depth: Describe models with fewer than 12 states, too, which the claim does not judge.
    """
    points = states(model, TOP_SHARE, tokens)
    if model.kind not in ("decoder", "encoder") or not points:
        return MatrixVerdict(OPEN, "neither a decoder nor an encoder, or not measured")
    version, line = ("", PUBLISHED) if tokens == "all" else ("_no_sink", CONTROL)
    shapes = _bell(points) if model.kind == "decoder" else {"range": _range(points)}
    estimates = {f"{name}{version}": each for name, each in shapes.items()}
    missing = ("range",) if model.kind == "decoder" else ("bell", "below_end")
    left_out = {f"{name}{version}": f"the model is a {model.kind}" for name in missing}
    left_out |= dict.fromkeys((f"{n}_tyler" for n in ("bell", "below_end", "range")), "the atlas has no Tyler's matrix")
    if any_depth:
        left_out[STATES.name] = "described at any depth"
    else:
        estimates[STATES.name] = Estimate.exact(len(points), "states")
    return _judged("S1", line, estimates, left_out)


def low_dimension(model: ModelEvidence) -> MatrixVerdict:
    """Judge S3 on one model: the intrinsic dimension without duplicates stays below 60 in every layer."""
    points = states(model, "two_nn", "no-sink")
    if not points:
        return MatrixVerdict(OPEN, "not measured")
    top = max(points, key=lambda point: point[1])
    estimates = {"highest": _estimate(top[1], top[2])}
    rows = min(SAMPLE, int(model.inputs[model.domain].get("tokens", SAMPLE)))
    most = isotropic_dimension(rows, model.width) if model.width else math.inf
    if most <= _BOUND:  # Gaussian rows with the covariance of the states read even less: the claim cannot fail
        verdict = _judged("S3", CONTROL, {**estimates, "gaussian": Estimate.exact(most)}, {})
        text = f"isotropic rows of this width read {most:.1f}, so the claim cannot fail here; highest {top[1]:.1f}"
        return MatrixVerdict(verdict.answer, text)
    left_out = {"gaussian": "the atlas does not measure Gaussian rows of the same covariance"}
    return _judged("S3", CONTROL, estimates, left_out)


@cache
def isotropic_dimension(rows: int, width: int) -> float:
    """Return the intrinsic dimension that is read off isotropic Gaussian rows (rows, width)."""
    return two_nn(torch.randn(rows, width, generator=torch.Generator().manual_seed(0)))


def high_cosine(model: ModelEvidence) -> MatrixVerdict:
    """Judge A1 on one model: the mean cosine is high in most layers of a transformer."""
    points, modality = states(model, "mean_cosine"), modality_of(model)
    if not points or modality not in TRANSFORMERS:
        return MatrixVerdict(OPEN, "not measured, no transformer, or no modality of the paper")
    left_out = {f"share_{other}": f"the model reads {modality}" for other in TRANSFORMERS if other != modality}
    left_out |= dict.fromkeys(("modalities", "cnn_lower"), "one model is judged")
    return _judged("A1", PUBLISHED, {f"share_{modality}": _share_above(points, HIGH)}, left_out)


def few_tokens(model: ModelEvidence) -> MatrixVerdict:
    """Tell whether a few tokens make the peak: without them the highest share falls to less than half.

    No paper claims this, so every measured site counts, also the last layer before the norm. The interval of the ratio
    decides, as for every effect.
    """
    both = [model.points(TOP_SHARE, tokens) for tokens in ("all", "no-sink")]
    if not all(both):
        return MatrixVerdict(OPEN, "one token policy is missing")
    before, after = (max(points, key=lambda point: point[1]) for points in both)
    left = _estimate(after[1] - before[1] / 2, _root(after[2], None if before[2] is None else before[2] / 2))
    low, high = left.interval
    answer = YES if high < 0 else NO if low >= 0 else INCONCLUSIVE
    return MatrixVerdict(answer, f"{before[1]:.2f} with all tokens, {after[1]:.2f} without sinks")


MATRIX = (
    MatrixRow(
        "S1, all tokens",
        "Decoders have a bell of anisotropy over layers; encoders are flat. As published; at least 12 states.",
        lambda model: bell_or_flat(model, "all"),
    ),
    MatrixRow(
        "S1, no-sink",
        "The same under control: without first tokens of windows and massive tokens.",
        lambda model: bell_or_flat(model, "no-sink"),
    ),
    MatrixRow("S3", "Intrinsic dimension is never above 60; without sinks and duplicates.", low_dimension),
    MatrixRow("A1", f"Mean cosine is above {HIGH} in most layers of a transformer. As published.", high_cosine),
    MatrixRow("few tokens", "Do a few tokens make most of the highest anisotropy? (No paper's claim.)", few_tokens),
)


def matrix(models: Sequence[ModelEvidence]) -> list[tuple[MatrixRow, list[MatrixVerdict]]]:
    """Return every claim with its verdict on every model."""
    return [(row, [row.rule(model) for model in models]) for row in MATRIX]


def matrix_table(models: Sequence[ModelEvidence]) -> str:
    """Return the matrix as a Markdown table, one row per model."""
    judged = matrix(models)
    rows = [(model.name, *(verdicts[i].answer for _, verdicts in judged)) for i, model in enumerate(models)]
    return markdown_table(("model", *(row.id for row, _ in judged)), rows)


# --- A1, A2: all models together ----------------------------------------------------------------------------------


def verdicts_on_all(models: Sequence[ModelEvidence]) -> list[Verdict]:
    """Judge the claims that are about many models at once, A1 and A2, on all models of the atlas that fit."""
    ran = f"{len(models)} models of the atlas"
    evidence = {"A1": _cosines(models), "A2": _drifts(models)}
    verdicts: list[Verdict] = []
    for claim in find_claims(list(evidence)):
        judged = judge(claim, Evidence(ran, MODEL, evidence[claim.id], gates_left_out(claim.gates)))
        verdicts += judged if claim.id == "A2" else judged[:1]  # the atlas has no cosine across documents
    return verdicts


def _cosines(models: Sequence[ModelEvidence]) -> dict[str, Estimate]:
    """The quantities of A1: the least favourable model of each modality, and convolutions below transformers."""
    shares: dict[str, Estimate] = {}
    means: dict[bool, list[Estimate]] = {True: [], False: []}  # of convolutions, and of transformers
    for model in models:
        points, modality = states(model, "mean_cosine"), modality_of(model)
        if not points or modality is None:
            continue
        means[modality == CONVOLUTION].append(_average(points))
        if modality in TRANSFORMERS:
            share = _share_above(points, HIGH)
            shares[modality] = min(shares.get(modality, share), share, key=lambda each: each.value)
    quantities = {f"share_{modality}": share for modality, share in shares.items()}
    quantities["modalities"] = Estimate.exact(len(shares))
    if all(means.values()):
        low, high = min(means[False], key=lambda e: e.value), max(means[True], key=lambda e: e.value)
        quantities["cnn_lower"] = _estimate(low.value - high.value, _root(low.error, high.error))
    return quantities


def _drifts(models: Sequence[ModelEvidence]) -> dict[str, Estimate]:
    """The quantities of A2, of the models with at least 12 states."""
    together, explained = [], []
    for model in models:
        cosine, drift, centred = (states(model, m) for m in ("mean_cosine", "drift_norm", "mean_cosine_centred"))
        if STATES.threshold < len(cosine) == len(drift) == len(centred):
            a, b = ([point[1] for point in points] for points in (cosine, drift))
            together.append(spearman(a, b) > 0 and spearman_p(a, b) < _SIGNIFICANT)
            explained.append(1 - sum(point[1] for point in centred) / max(sum(a), 1e-9))
    if not explained:
        return {}
    return {
        "significant": Estimate.of_flags(together, "models"),
        "explained": Estimate.of_flags([share > EXPLAINED for share in explained], "models"),
        "least_explained": Estimate(min(explained), None, 1, "models"),
        "states_of_models": Estimate.exact(STATES.threshold + 1, "states or more"),
    }


# --- estimates of profiles ----------------------------------------------------------------------------------------


def states(model: ModelEvidence, metric: str, tokens: str = "all") -> list[Point]:
    """Return a profile from the embedding to the last hidden state; as in papers, the last is after the norm."""
    points = model.points(metric, tokens)
    if len(points) > 1 and Site.parse(points[-1][0]).kind == "final":
        del points[-2]
    return points


def modality_of(model: ModelEvidence) -> str | None:
    """Return the modality of a model in the words of the claims; None if the papers have none like it."""
    return CONVOLUTION if model.kind == "convolutional" else _MODALITIES.get(model.modality)


def _judged(name: str, line: str, estimates: Mapping[str, Estimate], left_out: Mapping[str, str]) -> MatrixVerdict:
    """Judge one line of a claim; models of the atlas have passed a known-good check instead of a gate of losses."""
    claim = find_claims([name])[0]
    evidence = Evidence("the atlas", MODEL, estimates, {**gates_left_out(claim.gates), **left_out})
    verdict = judge(claim, evidence)[(PUBLISHED, CONTROL).index(line)]
    known = (each for each in verdict.reasons.conditions if "left out" not in each and "only part" not in each)
    return MatrixVerdict(verdict.outcome, "; ".join(known))


def _estimate(value: float, error: float | None) -> Estimate:
    return Estimate(value, error, BLOCKS, _UNIT)


def _root(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else math.hypot(a, b)


def _average(points: Sequence[Point]) -> Estimate:
    errors = [error for _, _, error, _ in points if error is not None]
    return _estimate(fmean(point[1] for point in points), fmean(errors) if len(errors) == len(points) else None)


def _bell(points: Sequence[Point]) -> dict[str, Estimate]:
    """The quantities of a decoder's profile."""
    values = [point[1] for point in points]
    third = len(points) // 3
    end = max(points[0], points[-1], key=lambda point: point[1])
    height = _root(_average(points[third : len(points) - third]).error, end[2])
    moved = [distance_from_middle(each) for each in (values, *_tilted(points))]
    return {
        "bell": _estimate(bell(values), height),
        "below_end": _estimate(moved[0], None if height is None else span(moved) / 2),
    }


def _tilted(points: Sequence[Point]) -> list[list[float]]:
    """The profile with its first half raised and its second half lowered by one error, and the other way round."""
    half = len(points) / 2
    return [
        [value + sign * (1 if index < half else -1) * (error or 0) for index, (_, value, error, _) in enumerate(points)]
        for sign in (1, -1)
    ]


def _range(points: Sequence[Point]) -> Estimate:
    high, low = (choose(points, key=lambda point: point[1]) for choose in (max, min))
    return _estimate(high[1] - low[1], _root(high[2], low[2]))


def _share_above(points: Sequence[Point], level: float) -> Estimate:
    """The share of states above a level; its error covers all states moving by one error together."""
    low, middle, high = (
        fmean(value + sign * (error or 0) > level for _, value, error, _ in points) for sign in (-1, 0, 1)
    )
    error = None if any(point[2] is None for point in points) else (high - low) / 2
    return _estimate(middle, error).of_answers(len(points))
