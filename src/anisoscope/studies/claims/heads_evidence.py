"""Evidence for A5: queries, keys and the sharpness of attention over training."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from torch import nn

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.curve_shapes import parallel_drift
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.hidden_states import Batches, cosines_before_rotation, entropies
from anisoscope.studies.claims.measurements import HEADS
from anisoscope.studies.claims.run_view import (
    RunView,
    Units,
    estimate,
    estimate_record,
    estimate_share,
    estimates,
    figure_records,
)
from anisoscope.studies.claims.subjects import Subjects, SubjectSource

PARALLEL = "parallel_means"  # the metric of |cos(q̄, k̄)| over training
# The paper looks at MultiBERTs: encoders with learned absolute positions. At this size such an encoder learns hardly
# more than token frequencies, so the cell is a decoder with learned absolute positions.
LEARNED = "learned-decoder"


def heads_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the drift of queries and keys and the entropy of attention over training (A5)."""
    models = subjects.checkpoints(LEARNED)
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
        estimate_record(cosine, PARALLEL, of="learned positions", step=step),
        estimate_record(entropy, "mean_entropy", of="heads", step=step),
    ]


def _entropy_rise(model: nn.Module, batches: Batches, _number: int) -> float:
    """Relative rise of the entropy if the mean query is removed from every head."""
    plain, without = (fmean(entropies(model, batches, centred=centred).values()) for centred in (False, True))
    return without / plain - 1


def heads_on_lab(subjects: Subjects) -> Evidence:
    """The same in the lab, with two rotary models shown for comparison, before and after rotation."""
    evidence = heads_evidence(subjects)
    lab, records = subjects.lab, list(evidence.records)
    for cell in ("decoder", "encoder"):
        for step in (0, subjects.size.frozen, subjects.size.steps):
            model = lab.at_step(cell, step)
            before = Estimate.over(model.per_unit(_before_rotation))
            after = estimate(lambda view: fmean(map(abs, view.heads("qk_cosine").values())), model.measure(HEADS))
            for words, value in (("before", before), ("after", after)):
                of = f"rotary {cell}, {words} rotation"
                records.append(estimate_record(value, PARALLEL, of=of, step=step))
    return replace(evidence, records=tuple(records))


def _before_rotation(model: nn.Module, batches: Batches, _number: int) -> float:
    return fmean(map(abs, cosines_before_rotation(model, batches).values()))
