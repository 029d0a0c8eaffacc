"""Findings of the atlas in plain words. Every number comes from the evidence; a missing model drops its sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from anisoscope.studies.atlas.atlas_svg import half_depth
from anisoscope.studies.atlas.claim_matrix import (
    FAILS,
    HOLDS,
    NO,
    YES,
    bell_or_flat,
    few_tokens,
    high_cosine,
    low_dimension,
)
from anisoscope.studies.atlas.evidence import ModelEvidence, Point
from anisoscope.studies.atlas.quantisation import Shift
from anisoscope.studies.claims.conditions import INCONCLUSIVE, UNTESTABLE

_SHARE = "spectral_anisotropy"
_CONTRASTIVE = (("SCEPTR", "SCEPTR-MLM"), ("SCEPTR-third-loop", "SCEPTR-third-loop-MLM"))
# A metric, its name, and whether an even cloud has a high or a low value.
_EVENNESS = ((_SHARE, "top direction's share", -1), ("mean_cosine", "mean cosine", -1), ("isoscore", "IsoScore", 1))


def findings(models: Sequence[ModelEvidence], shifts: Sequence[Shift] = ()) -> list[str]:
    """Return the findings as sentences, the most important first."""
    named = {model.name: model for model in models}
    sentences = [
        _overview(models),
        _few_tokens(models),
        _bells(models),
        _encoders(models),
        _training(models),
        _cosines(models),
        _dimensions(models),
        _contrastive(named),
        _pair(named),
        _fine_tuned(named),
        _rounded(shifts),
    ]
    return [sentence for sentence in sentences if sentence]


def _overview(models: Sequence[ModelEvidence]) -> str:
    modalities = {model.modality for model in models}
    listed = ", ".join(sorted(modalities, key=str.lower))
    return (
        f"{len(models)} trained models of {len(modalities)} kinds of data ({listed}) pass their "
        "known-good check and are measured with the same instrument, each next to an untrained twin."
    )


def _few_tokens(models: Sequence[ModelEvidence]) -> str:
    made = [model for model in models if few_tokens(model).answer == YES]
    judged = [model for model in models if few_tokens(model).answer in (YES, NO)]
    if not judged:
        return ""
    examples = "; ".join(f"{model.name}, {model.modality}: {few_tokens(model).text}" for model in made[:6])
    return (
        f"**A few tokens make the peak in {len(made)} of {len(judged)} models.** Without first tokens of windows and "
        "massive tokens, the highest share of one direction falls to less than half"
        + (f" ({examples})." if made else ".")
    )


def _bells(models: Sequence[ModelEvidence]) -> str:
    decoders = [model for model in models if model.kind == "decoder"]
    if not decoders:
        return ""
    counts = {tokens: _with_shape(decoders, tokens) for tokens in ("all", "no-sink")}
    return (
        f"**The bell of decoders**: {len(counts['all'])} of {len(decoders)} decoders show it with all tokens"
        f"{_listed(counts['all'])}, {len(counts['no-sink'])} without sinks{_listed(counts['no-sink'])}."
        f"{_shallow(decoders)}"
    )


def _encoders(models: Sequence[ModelEvidence]) -> str:
    encoders = [model for model in models if model.kind == "encoder" and model.points(_SHARE)]
    if not encoders:
        return ""
    flat = _with_shape(encoders, "all")
    title = "Encoders are flat" if len(flat) == len(encoders) else "Encoders are not always flat"
    return (
        f"**{title}**: {len(flat)} of {len(encoders)} encoders keep the share of the top "
        f"direction within a range of 0.1 over their layers{_listed(flat)}.{_one_family(encoders)}{_shallow(encoders)}"
    )


def _with_shape(models: Sequence[ModelEvidence], tokens: str) -> list[str]:
    """Names of the models that have the shape of the claim, at any depth."""
    return [model.name for model in models if bell_or_flat(model, tokens, any_depth=True).answer == HOLDS]


def _shallow(models: Sequence[ModelEvidence]) -> str:
    """How many models have too few states for the rule of the claim."""
    few = [model for model in models if bell_or_flat(model, "all").answer == UNTESTABLE]
    if not few:
        return ""
    which = f"{len(few)} of these {len(models)}" if len(few) < len(models) else f"All {len(few)}"
    return f" {which} have fewer than the 12 states that the claim's rule needs."


def _training(models: Sequence[ModelEvidence]) -> str:
    """Compare with untrained twins; each kind of data counts once, by its median model."""
    parts, common = [], []
    for metric, words in ((_SHARE, "the share of the top direction"), ("two_nn", "the intrinsic dimension")):
        ratios: dict[str, list[float]] = {}
        for model in models:
            trained, untrained = half_depth(model, metric), half_depth(model, metric, "untrained")
            if trained is not None and untrained is not None and untrained[1] > 0:
                ratios.setdefault(model.modality, []).append(trained[1] / untrained[1])
        if not ratios:
            return ""
        medians = {modality: median(values) for modality, values in ratios.items()}
        above = sum(value > 1 for value in medians.values())
        listed = ", ".join(f"{modality} {value:.2g}" for modality, value in medians.items())
        parts.append(
            f"{words} is above that of the untrained twin in {above} of {len(medians)} kinds of data ({listed})"
        )
        if above in (0, len(medians)) and len(medians) > 1:
            common.append(f"{words} {'rises' if above else 'falls'}")
    shared = (
        f" Common to all kinds of data: {' and '.join(common)}."
        if common
        else " Neither moves in the same direction in all kinds of data."
    )
    return (
        f"**What training does**, as the median ratio of trained to untrained at half depth without sinks: "
        f"{'; '.join(parts)}.{shared}"
    )


def _cosines(models: Sequence[ModelEvidence]) -> str:
    answers = [high_cosine(model).answer for model in models]
    high, low, undecided = (answers.count(answer) for answer in (HOLDS, FAILS, INCONCLUSIVE))
    if not high + low + undecided:
        return ""
    return (
        f"**Mean cosine** exceeds 0.2 in most layers of {high} of {high + low + undecided} transformers, and does not "
        f"in {low}; in {undecided} the layers are too few to tell."
    )


def _dimensions(models: Sequence[ModelEvidence]) -> str:
    judged = [model for model in models if low_dimension(model).answer in (HOLDS, FAILS)]
    if not judged:
        return ""
    tops = {model.name: max(p[1] for p in model.points("two_nn", "no-sink")) for model in judged}
    highest = max(tops, key=lambda name: tops[name])
    low = sum(low_dimension(model).answer == HOLDS for model in judged)
    title = "Intrinsic dimension is low" if low == len(judged) else "Intrinsic dimension is not always low"
    return (
        f"**{title}**: it is below 60 in every layer of {low} of the {len(judged)} models in which a higher value "
        f"could be read; the highest value is {tops[highest]:.1f}, in {highest}."
    )


def _contrastive(named: Mapping[str, ModelEvidence]) -> str:
    """Compare the last layers of models that differ in the contrastive loss only."""
    parts, answers = [], set()
    for first, second in _CONTRASTIVE:
        if not {first, second} <= set(named):
            continue
        numbers = []
        for metric, words, even in _EVENNESS:
            both = [named[name].points(metric, "no-sink")[-1:] for name in (first, second)]
            if all(both):
                difference = (both[0][0][1] - both[1][0][1]) * even
                margin = 2 * math.hypot(*(points[0][2] or 0 for points in both))
                answers.add("spreads" if difference > margin else "narrows" if difference < -margin else "neither")
                numbers.append(f"{words} {_number(both[0][0])} against {_number(both[1][0])}")
        parts.append(f"{first} against {second}: {', '.join(numbers)}")
    if not answers:
        return ""
    answer = answers.pop() if len(answers) == 1 else "neither"
    title = {"spreads": "spreads the cloud", "narrows": "narrows the cloud"}.get(
        answer, "has no one effect on the cloud"
    )
    return f"**Contrastive training {title}** of the last layer, against masked residues only: {'; '.join(parts)}."


def _pair(named: Mapping[str, ModelEvidence]) -> str:
    if not {"IgLM", "AntiBERTy"} <= set(named):
        return ""
    parts = []
    for name in ("IgLM", "AntiBERTy"):
        tops = [max(p[1] for p in named[name].points(_SHARE, tokens)) for tokens in ("all", "no-sink")]
        parts.append(
            f"the {named[name].kind} {name} peaks at {tops[0]:.2f} with all tokens, {tops[1]:.2f} without sinks"
        )
    return f"**Decoder and encoder on the same antibodies**: {'; '.join(parts)}."


def _fine_tuned(named: Mapping[str, ModelEvidence]) -> str:
    names = [name for name in ("rxnfp-pretrained", "rxnfp-classes", "rxnfp-10k") if name in named]
    if len(names) < 2:
        return ""
    parts = []
    for name in names:
        share, dimension = (named[name].points(metric, "no-sink")[-1] for metric in (_SHARE, "two_nn"))
        parts.append(f"{name} {_number(share)} (dimension {dimension[1]:.1f})")
    return f"**Fine-tuning on classes** changes the last layer's top direction: {'; '.join(parts)}."


def _rounded(shifts: Sequence[Shift]) -> str:
    if not shifts:
        return ""
    parts = []
    for kind in sorted({shift.kind for shift in shifts}, reverse=True):
        rows = [shift for shift in shifts if shift.kind == kind]
        moved = list(dict.fromkeys(shift.metric for shift in rows if shift.moved))
        metrics = len({shift.metric for shift in rows})
        named = " and ".join(moved) if len(moved) < 3 else ", ".join(moved)
        parts.append(
            f"{kind} moves {len(moved)} of {metrics} metrics by more than their error{f' ({named})' * bool(moved)}"
        )
    models = " and ".join(dict.fromkeys(shift.model for shift in shifts))
    return f"**Rounding the weights** of {models}: {'; '.join(parts)} (table below)."


def _one_family(models: Sequence[ModelEvidence]) -> str:
    """Return a caveat if more than a third of the models are variants of one model."""
    family, count = Counter(model.family for model in models).most_common(1)[0]
    variants = count > len(models) / 3 and len({m.modality for m in models if m.family == family}) == 1
    return f" {count} of these {len(models)} are variants of {family}." if variants and count > 2 else ""


def _number(point: Point) -> str:
    return f"{point[1]:.3f} ± {point[2]:.3f}" if point[2] else f"{point[1]:.3f}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:8])
    return f" ({shown}{' and more' if len(names) > 8 else ''})"
