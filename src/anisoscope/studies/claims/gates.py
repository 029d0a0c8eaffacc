"""Conditions for testing a claim at all, measured on the same trainings as the claim. They cut both ways.

A training that has not learnt more than counts of neighbours says nothing about transformers, neither for a claim nor
against it. The same holds for a curve that has not ended, for a training far shorter than the one that a claim is
about, for a comparison at different losses, for a few token types, and for a profile of a few states.
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
LONG = gate("tokens_per_parameter", 999, "training tokens per parameter, of the shortest training")
_LOSSES = "the losses of a given model are unknown"
# The gates that follow from a training, and why they are left out for a model of the user.
_OF_TRAININGS = {
    LEARNT: _LOSSES,
    ENDED: _LOSSES,
    SETTLED: _LOSSES,
    LONG: "the length of the training of a given model is unknown",
}


def learnt(cell: str) -> Condition:
    """Return the gate that one training has learnt more than counts of neighbours."""
    return gate(f"learnt_{cell}", _MARGIN, f"{cell}: loss of counts of neighbouring tokens − its loss, in nats")


def matched(cell: str) -> Condition:
    """Return the gate that a training and the one it is compared with have nearly the same loss."""
    return gate(f"unmatched_{cell}", 0.1, f"{cell}: difference of the losses that are compared, in nats", below=True)


def gates_of_trainings(gates: Sequence[Condition], lab: Lab, cells: Sequence[str]) -> dict[str, Estimate]:
    """Measure the gates that follow from the losses and lengths of trainings, each at the worst seed of the worst cell.

    Args:
        gates: Gates of a claim; others than LEARNT, ENDED, SETTLED and LONG are ignored.
        lab: The trainings.
        cells: Their names; those that only figures show do not count.
    """
    judged = [(cell, seed) for cell in cells if cell not in SHOWN for seed in lab.seeds_of(cell)]
    values = {
        LEARNT.name: lambda: min(lab.margin(cell, seed) for cell, seed in judged),
        ENDED.name: lambda: max(lab.change_at_end(cell, seed) for cell, seed in judged),
        SETTLED.name: lambda: min(lab.settled_margin(cell) for cell, _ in judged),
        LONG.name: lambda: min(tokens_per_parameter(lab, cell, seed) for cell, seed in judged),
    }
    return {each.name: Estimate.exact(values[each.name]()) for each in gates if each in _OF_TRAININGS and judged}


def tokens_per_parameter(lab: Lab, cell: str, seed: int) -> float:
    """Return the number of tokens that a training has seen, repeated ones included, over the number of parameters."""
    experiment = lab.trained(cell, seed).experiment
    tokens = lab.steps_of(cell) * experiment.recipe.batch * experiment.model.context
    return tokens / float(lab.opened(cell, seed, lab.steps_of(cell)).info["parameters"])


def gates_left_out(gates: Sequence[Condition]) -> dict[str, str]:
    """Return the gates that follow from a training, of which a given model brings no record, with the reason."""
    return {each.name: _OF_TRAININGS[each] for each in gates if each in _OF_TRAININGS}
