"""C: two later papers: sinks and compression valleys (Queipo-de-Llano 2025), phases of the rank (Li 2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Claim, Evidence
from anisoscope.studies.claims.conditions import above, below, every, gate
from anisoscope.studies.claims.curve_shapes import fall_rise_fall
from anisoscope.studies.claims.estimate import CORRELATION, Estimate
from anisoscope.studies.claims.gates import ENDED, LEARNT
from anisoscope.studies.claims.hidden_states import Batches, entropies, states
from anisoscope.studies.claims.modality_evidence import pearson
from anisoscope.studies.claims.run_view import estimate_record
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects, SubjectSource

SINKS, PHASES = "queipo2025", "li2025"
_MASSIVE = 5.0  # medians of the norm from which a token is massive
_WINDOWS = 512  # of which the last token is taken
_FIT = (0.1, 0.6)  # share of the eigenvalues, from the largest on, that the power law is fitted to


# --- C1: sinks, massive tokens and the valley of entropy ----------------------------------------------------------


def matrix_entropy(rows: Tensor) -> float:
    """Return the entropy of the squared singular values of one sequence's states, over its largest possible value.

    >>> round(matrix_entropy(torch.eye(4)), 6), round(matrix_entropy(torch.ones(4, 3)), 6)
    (1.0, 0.0)
    """
    values = torch.linalg.svdvals(rows.double()).square()
    p = values / values.sum().clamp(min=1e-300)
    entropy = float(-(p * p.clamp(min=1e-300).log()).sum())
    return max(0.0, entropy) / math.log(len(values))


def _valley(model: nn.Module, batches: Batches, window: int) -> tuple[list[float], list[float], list[float]]:
    """By layer: matrix entropy of all tokens, the same without first and massive tokens, and the share of massive."""
    whole, without, massive = [], [], []
    for rows in states(model, batches, ["resid"]).values():
        norm = rows.norm(dim=1)
        heavy = norm > _MASSIVE * norm.median()
        keep = ~heavy
        keep[::window] = False
        cuts = range(0, len(rows) - window + 1, window)
        whole.append(fmean(matrix_entropy(rows[i : i + window]) for i in cuts))
        without.append(fmean(matrix_entropy(rows[i : i + window][keep[i : i + window]]) for i in cuts))
        massive.append(float(heavy.float().mean()))
    return whole, without, massive


def depth_of_valley(profile: Sequence[float]) -> float:
    """Return the lower one of the first and last value minus the lowest value between them.

    >>> depth_of_valley([0.9, 0.2, 0.1, 0.8])
    0.7000000000000001
    """
    return min(profile[0], profile[-1]) - min(profile[1:-1], default=profile[0])


def _valley_evidence(subjects: SubjectSource) -> Evidence:
    model = subjects.models("decoder")[0]
    measured = model.per_unit(lambda network, batches, _number: _valley(network, batches, model.window))
    unit = "seeds" if isinstance(model, LabModel) else "groups of documents"
    sharp = model.per_unit(lambda network, batches, _number: _sharpness(network, batches))
    quantities = {
        "massive": Estimate.exact(max(max(massive) for _, _, massive in measured)),
        "valley": Estimate.over([depth_of_valley(whole) for whole, _, _ in measured], unit),
        "together": Estimate.over([-pearson(whole, massive) for whole, _, massive in measured], unit),
        "valley_left": Estimate.over([depth_of_valley(without) for _, without, _ in measured], unit),
    }
    records: list[Record] = []
    for index, name in enumerate(("all tokens", "without first and massive tokens")):
        for layer in range(len(measured[0][0])):
            value = Estimate.over([seed[index][layer] for seed in measured], unit)
            records.append(estimate_record(value, "matrix_entropy_by_layer", of=name, site=f"resid.{layer}"))
    note = f"mean attention entropy {fmean(sharp):.2f} of even attention"
    return subjects.evidence([model], quantities, records, note=note)


def _sharpness(model: nn.Module, batches: Batches) -> float:
    return fmean(entropies(model, batches).values())


# --- C2: phases of the rank over training -------------------------------------------------------------------------


def rank_and_exponent(rows: Tensor) -> tuple[float, float]:
    """Return RankMe, exp of the entropy of the singular values, and the exponent α of λ_j ∝ j^−α.

    >>> round(rank_and_exponent(torch.eye(8))[0], 6)
    8.0
    """
    s = torch.linalg.svdvals(rows.double())
    p = s / s.sum().clamp(min=1e-300)
    rank = float(torch.exp(-(p * p.clamp(min=1e-300).log()).sum()))
    values = torch.linalg.svdvals((rows - rows.mean(0)).double()).square()
    first, last = (max(1, round(share * len(values))) for share in _FIT)
    j = torch.arange(1, len(values) + 1, dtype=torch.float64)[first:last].log()
    y = values[first:last].clamp(min=1e-300).log()
    if len(j) < 2:
        return rank, 0.0
    return rank, -float(((j - j.mean()) * (y - y.mean())).sum() / (j - j.mean()).square().sum())


def _phases_evidence(subjects: Subjects) -> Evidence:
    lab, cell = subjects.lab, "decoder"
    steps = [step for step in subjects.size.measured_steps if step <= lab.steps_of(cell)]
    context = int(subjects.size.switches["context"])
    ids = lab.data(cell).held_out(_WINDOWS, context)
    ranks, exponents = [], []
    for seed in lab.seeds_of(cell):
        lab.on_status(f"rank of the last token, seed {seed}")
        pairs = [rank_and_exponent(_last_tokens(lab.model(cell, seed, step), ids)) for step in steps]
        ranks.append([rank for rank, _ in pairs])
        exponents.append([exponent for _, exponent in pairs])
    moves = fall_rise_fall(ranks)
    quantities = {
        name: Estimate.over([seed[index] for seed in moves])
        for index, name in enumerate(("first_fall", "rise", "last_fall"))
    }
    quantities["mirrors"] = Estimate.over([pearson(a, b) for a, b in zip(ranks, exponents, strict=True)])
    records = [
        estimate_record(
            Estimate.over([seed[number] for seed in values]), metric, of="last tokens of windows", step=step
        )
        for metric, values in (("rank_of_last_token", ranks), ("exponent_of_last_token", exponents))
        for number, step in enumerate(steps)
    ]
    subject: Subject = lab.last(cell)
    return subjects.evidence([subject], quantities, records, note=f"{len(ids)} windows")


def _last_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    batches = [{"input_ids": part} for part in ids.split(64)]
    rows = states(model, batches, ["final"])["final"]
    return rows.view(len(ids), ids.shape[1], -1)[:, -1]


# --- the claims ---------------------------------------------------------------------------------------------------

CLAIMS = (
    Claim(
        "C1",
        SINKS,
        "Massive tokens, attention sinks and the valley of the per-sequence matrix entropy appear together.",
        {"lab": _valley_evidence, "model": _valley_evidence},
        published=every(
            above("valley", 0.1, "depth of the valley of the matrix entropy over layers", holds=0.4, fails=0.0),
            above(
                "together",
                0.5,
                "correlation over layers of the share of massive tokens with falling entropy",
                CORRELATION,
                holds=0.8,
                fails=0.0,
            ),
        ),
        control=every(
            below(
                "valley_left",
                0.05,
                "depth of the valley without first and massive tokens",
                holds=0.0,
                fails=0.3,
            )
        ),
        settle="a model with massive tokens: --model HuggingFaceTB/SmolLM2-360M --text FILE",
        figure=("matrix_entropy_by_layer",),
        cells=("decoder",),
        seconds=4,
        sources=("EleutherAI/pythia-410m",),
        gates=(LEARNT, gate("massive", 0.0, "largest share of massive tokens in a layer")),
        plain="A few huge tokens, attention sinks and a dip in variety over layers are one phenomenon",
        found="they appear together in Pythia and Llama",
    ),
    Claim(
        "C2",
        PHASES,
        "The effective rank of the last token's final state falls, rises, then falls over training.",
        {"lab": _phases_evidence},
        published=every(
            above("first_fall", 0.0, "first − trough of the effective rank", holds=5.0, fails=-2.0),
            above("rise", 0.0, "peak − trough", holds=5.0, fails=0.0),
            above("last_fall", 0.0, "peak − last", holds=3.0, fails=-1.0),
        ),
        control=every(
            above("last_fall", 0.0, "peak − last, peak chosen on other seeds", holds=3.0, fails=-1.0),
            below(
                "mirrors",
                -0.5,
                "correlation of the rank with the power-law exponent",
                CORRELATION,
                holds=-0.9,
                fails=0.0,
            ),
        ),
        settle="checkpoints of a long training",
        figure=("rank_of_last_token", "exponent_of_last_token"),
        cells=("decoder",),
        seconds=8,
        gates=(LEARNT, ENDED),
        plain="Training has three phases: collapse, expansion, compression of the last state",
        found="in OLMo and Pythia",
    ),
)
