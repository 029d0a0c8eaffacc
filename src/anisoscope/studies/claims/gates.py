"""Conditions for testing a claim at all, measured on the same trainings as the claim. They cut both ways.

A training that has not learnt more than counts of neighbours says nothing about transformers, neither for a claim nor
against it. The same holds for a curve that has not ended, for a comparison at different losses, for a few token types,
and for a profile of a few states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anisoscope.studies.claims.conditions import Condition, gate
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.run_sizes import SHOWN

if TYPE_CHECKING:
    from anisoscope.studies.claims.subjects import Lab

_MARGIN = 0.3  # nats per token below counts of neighbours
LEARNT = gate("learnt", _MARGIN, "loss of counts of neighbouring tokens − loss of the worst training, in nats")
ENDED = gate("ended", 0.02, "largest change of the loss in the last quarter of training, as a share of it", below=True)
SETTLED = gate("settled", 0.0, "loss of token frequencies − loss at the first measurement that counts, in nats")
TYPES = gate("types", 499, "token types")
STATES = gate("states", 11, "hidden states over the depth")
_OF_TRAININGS = (LEARNT, ENDED, SETTLED)


def learnt(cell: str) -> Condition:
    """Return the gate that one training has learnt more than counts of neighbours."""
    return gate(f"learnt_{cell}", _MARGIN, f"{cell}: loss of counts of neighbouring tokens − its loss, in nats")


def matched(cell: str) -> Condition:
    """Return the gate that a training and the one it is compared with have nearly the same loss."""
    return gate(f"unmatched_{cell}", 0.1, f"{cell}: difference of the losses that are compared, in nats", below=True)


def gates_of_trainings(gates: Sequence[Condition], lab: Lab, cells: Sequence[str]) -> dict[str, Estimate]:
    """Measure the gates that follow from the losses of trainings, each at the worst seed of the worst cell.

    Args:
        gates: Gates of a claim; others than LEARNT, ENDED and SETTLED are ignored.
        lab: The trainings.
        cells: Their names; those that only figures show do not count.
    """
    judged = [(cell, seed) for cell in cells if cell not in SHOWN for seed in lab.seeds_of(cell)]
    values = {
        LEARNT.name: lambda: min(lab.margin(cell, seed) for cell, seed in judged),
        ENDED.name: lambda: max(lab.change_at_end(cell, seed) for cell, seed in judged),
        SETTLED.name: lambda: min(lab.settled_margin(cell) for cell, _ in judged),
    }
    return {each.name: Estimate.exact(values[each.name]()) for each in gates if each in _OF_TRAININGS and judged}


def gates_left_out(gates: Sequence[Condition]) -> dict[str, str]:
    """Return the gates that follow from losses of trainings, which a given model does not come with."""
    return {each.name: "the losses of a given model are unknown" for each in gates if each in _OF_TRAININGS}
