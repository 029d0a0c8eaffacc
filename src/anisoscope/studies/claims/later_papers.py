"""C: two later papers: sinks and compression valleys (Queipo-de-Llano 2025), phases of the rank (Li 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.policies import massive_norm
from anisoscope.metrics import find
from anisoscope.records import Record
from anisoscope.stats.collect import cloud_of
from anisoscope.studies.claims.claim import Claim, Evidence
from anisoscope.studies.claims.conditions import above, below, every, gate
from anisoscope.studies.claims.curve_shapes import fall_rise_fall
from anisoscope.studies.claims.estimate import CORRELATION, Estimate
from anisoscope.studies.claims.gates import ENDED, LEARNT
from anisoscope.studies.claims.hidden_states import Batches, matrix_entropy, states, windows
from anisoscope.studies.claims.modality_evidence import pearson
from anisoscope.studies.claims.run_view import RunView, estimate_record
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects, SubjectSource

SINKS, PHASES = "queipo2025", "li2025"
_WINDOWS = 512  # of which the last token is taken


# --- C1: sinks, massive tokens and the valley of entropy ----------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """What one unit of a model shows over its layers. `sinks` is shorter by one: no attention reads the last state."""

    entropy: tuple[float, ...]  # matrix entropy of all tokens after each layer
    entropy_left: tuple[float, ...]  # the same without first and massive tokens
    massive: tuple[float, ...]  # number of massive tokens after each layer
    sinks: tuple[float, ...]  # share of the heads that are sinks, of the attention that reads each state


def _layers(model: nn.Module, batches: Batches, _number: int) -> Layers:
    """Measure one unit with the metrics of the library."""
    options: dict[str, Any] = {"metrics": ("matrix_entropy", "massive_tokens", "sink_rate"), "errors": False}
    view = RunView.of(measure(model, batches, sites=("resid", "pattern"), **options).records())

    def by_layer(metric: str, **variant: str) -> tuple[float, ...]:
        return tuple(entry.value for entry in view.find(metric, **variant))

    return Layers(
        by_layer("matrix_entropy"),
        _entropy_left(model, batches),
        by_layer("massive_tokens", rule="norm"),
        by_layer("sink_rate")[1:],  # the attention of layer k + 1 reads the state after layer k
    )


def _entropy_left(model: nn.Module, batches: Batches) -> tuple[float, ...]:
    """The matrix entropy after each layer without sinks: first tokens, and tokens that are or were massive."""
    window = windows(batches)  # (n,)
    sink = torch.cat((torch.tensor([True]), window[1:] != window[:-1]))
    entropy = []
    for site, rows in states(model, batches, ["embed", "resid"]).items():
        norm = rows.norm(dim=1)
        sink |= norm > massive_norm(float(norm.median()))
        if site != "embed":
            entropy.append(matrix_entropy(rows[~sink], window[~sink]))
    return tuple(entropy)


def depth_of_valley(profile: Sequence[float]) -> float:
    """Return the lower one of the first and last value minus the lowest value between them.

    >>> depth_of_valley([0.9, 0.2, 0.1, 0.8])
    0.7000000000000001
    """
    return min(profile[0], profile[-1]) - min(profile[1:-1], default=profile[0])


def _valley_evidence(subjects: SubjectSource) -> Evidence:
    model = subjects.models("decoder")[0]
    measured = model.per_unit(_layers)
    unit = "seeds" if isinstance(model, LabModel) else "groups of documents"
    quantities = {
        "massive": Estimate.exact(max(max(each.massive) for each in measured)),
        "valley": Estimate.over([depth_of_valley(each.entropy) for each in measured], unit),
        "together": Estimate.over([-pearson(each.entropy, each.massive) for each in measured], unit),
        "sinks_together": Estimate.over([-pearson(each.entropy[:-1], each.sinks) for each in measured], unit),
        "valley_left": Estimate.over([depth_of_valley(each.entropy_left) for each in measured], unit),
    }
    curves = {
        ("matrix_entropy", "all tokens"): [each.entropy for each in measured],
        ("matrix_entropy", "without first and massive tokens"): [each.entropy_left for each in measured],
        ("massive_tokens", "all tokens"): [each.massive for each in measured],
        ("sink_rate", "attention that reads the state"): [each.sinks for each in measured],
    }
    records: list[Record] = []
    for (metric, of), units in curves.items():
        for layer, values in enumerate(zip(*units, strict=True)):
            records.append(estimate_record(Estimate.over(values, unit), metric, of=of, site=f"resid.{layer}"))
    return subjects.evidence([model], quantities, records)


# --- C2: phases of the rank over training -------------------------------------------------------------------------


def rank_and_exponent(rows: Tensor) -> tuple[float, float]:
    """Return RankMe, exp of the entropy of the singular values, and the exponent α of λ_j ∝ j^−α.

    >>> round(rank_and_exponent(torch.eye(16))[0], 6)
    16.0
    """
    cloud = cloud_of(rows, {"Moments"})
    rank, exponent = (metric.values(cloud)[0].value for metric in find(["rankme", "power_law_alpha"]))
    assert rank is not None
    assert exponent is not None
    return rank, exponent


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
                "correlation over layers of the number of massive tokens with falling entropy",
                CORRELATION,
                holds=0.8,
                fails=0.0,
            ),
            above(
                "sinks_together",
                0.5,
                "correlation over layers of the share of sink heads with falling entropy",
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
        figure=("matrix_entropy", "massive_tokens", "sink_rate"),
        cells=("decoder",),
        seconds=4,
        sources=("EleutherAI/pythia-410m",),
        gates=(LEARNT, gate("massive", 0.0, "largest number of massive tokens after a layer")),
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
