"""The disputes of the papers: which claims belong to each, and what the verdicts on them are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anisoscope.studies.claims.claim import Claim, Verdict
from anisoscope.studies.claims.conditions import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, UNTESTABLE

Pair = Sequence[Verdict]
NOT_RUN = "not run"
_ORDER = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, UNTESTABLE)


@dataclass(frozen=True)
class Dispute:
    """A question on which the papers disagree, or on which controls and papers may.

    Attributes:
        question: The question.
        text: What each side says, and what would tell them apart.
        headline: Ids of the claims that a visitor reads first.
        others: Ids of the other claims of this dispute.
    """

    question: str
    text: str
    headline: tuple[str, ...]
    others: tuple[str, ...] = ()


DISPUTES = (
    Dispute(
        "Is there a bell over the layers of decoders?",
        "Razzhigaev et al. see one direction dominate in the middle layers of decoders and not in encoders, and the "
        "number of dimensions rise and fall in training. A few huge tokens alone can draw such a bell, so the control "
        "leaves them out; twins that differ only in the mask show whether the mask causes it.",
        ("S1", "S2", "S6"),
        ("S3", "S4", "S5", "C1", "C2"),
    ),
    Dispute(
        "Are transformers isotropic or not?",
        "Godey et al. find states that all point in similar directions, in every kind of transformer. Machina and "
        "Mercer find word vectors of large models that spread evenly. Both can be true: one looks at hidden states "
        "with their mean, the other at vocabulary matrices. N5 asks both questions of one model.",
        ("A1", "N1", "N5"),
        ("A2", "N2", "N3", "N4", "N6", "P1"),
    ),
    Dispute(
        "Is attention to blame?",
        "Godey et al. argue that self-attention itself makes states alike: even an untrained block does, and in "
        "training queries and keys drift together while attention sharpens. Models without attention, with uniform "
        "attention, with other objectives and other token distributions show which is the larger cause (A7).",
        ("A3", "A5", "A7"),
        ("A4", "A6", "P2"),
    ),
    Dispute(
        "Do gradients follow the activations?",
        "Bernas et al. find gradients inside the directions in which activations vary most, above all early in "
        "training. Tied embeddings and a shared covariance give some of that before any training, so the control asks "
        "whether gradients follow their own patch of the activations, beyond step 0, and with untied embeddings.",
        ("T1", "T4", "T7"),
        ("T2", "T3", "T5", "T6"),
    ),
)


def dispute_summary(dispute: Dispute, verdicts: Mapping[str, Pair]) -> str:
    """Return the verdicts of a dispute in two sentences: ids by outcome, for each line.

    >>> dispute_summary(Dispute("?", "", ("S1",)), {})
    'As published: not run (S1). Under control: not run (S1).'
    """
    sentences = []
    for number, words in enumerate(("As published", "Under control")):
        by_outcome: dict[str, list[str]] = {outcome: [] for outcome in _ORDER}
        for name in (*dispute.headline, *dispute.others):
            outcome = verdicts[name][number].outcome if name in verdicts else NOT_RUN
            by_outcome.setdefault(outcome, []).append(name)
        parts = [f"{outcome} ({', '.join(ids)})" for outcome, ids in by_outcome.items() if ids]
        sentences.append(f"{words}: {', '.join(parts)}.")
    return " ".join(sentences)


def disputes_text(judged: Sequence[tuple[Claim, Pair]]) -> str:
    """Return one short paragraph per dispute in Markdown, each with its verdicts."""
    verdicts = {claim.id: pair for claim, pair in judged}
    return "\n\n".join(f"**{d.question}** {d.text}\n*{dispute_summary(d, verdicts)}*" for d in DISPUTES)


def measured_on(verdicts: Pair) -> str:
    """Return what was run, in a few words: the source and the number of units."""
    decided = next((each for each in verdicts if each.reasons.ran), None)
    if decided is None:
        return ""
    ran = decided.reasons.ran
    source = ran.partition(":")[0] if ran.startswith("lab") else re.split("[,;]", ran)[0]
    effects = [each.effect for each in verdicts if each.effect is not None and not each.effect.is_exact]
    return f"{source}, {effects[0].n} {effects[0].unit}" if effects else source
