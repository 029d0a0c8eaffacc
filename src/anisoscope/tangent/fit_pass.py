"""The pass over the fit tokens: a keyed sample of rows at every stage, and the bases fitted on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anisoscope.hooks.backward import Tape, TapeTargets, record_tape, run_model
from anisoscope.measurement.policies import massive_norm
from anisoscope.records import Record
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.rows import bare_rows
from anisoscope.tangent.concepts import read_concepts
from anisoscope.tangent.frequency import frequency_distance, token_counts, type_balanced
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_IN
from anisoscope.tangent.patches import CLUSTERS
from anisoscope.tangent.semi_nmf import factorise
from anisoscope.tangent.site_bases import SiteBases, fit_site_bases
from anisoscope.tangent.splits import Side
from anisoscope.tangent.tangent_plan import Stage, TangentPlan, fit_stages

_BATCH, _INDEX, _TOKEN, _KEY, _BLOCK = range(5)  # columns of a table of sampled tokens


@dataclass(frozen=True)
class FitResult:
    """What the fit pass returns: bases by stage, records, and the concepts of semi-NMF in words."""

    bases: dict[str, SiteBases]
    records: list[Record]
    concepts: dict[str, Any]


@dataclass
class _SampledRows:
    """The sampled rows of one stage, which tokens they are, and the norms of all of its rows."""

    x: list[Tensor] = field(default_factory=list)
    table: list[Tensor] = field(default_factory=list)  # (n, 5) each
    norms: Norms | None = None

    def add(self, plan: TangentPlan, side: Side, number: int, stack: str, x: Tensor) -> None:
        """Add a batch's rows x (b, T, d): those with the smallest keys, the same tokens at every stage."""
        index, tokens = side.tokens(number, stack, x.shape[1])
        share = min(1.0, plan.sample / max(1, len(side)))
        few = (tokens.key.double() <= share * 2**63).nonzero()[:, 0]
        flat = x.detach().reshape(-1, x.shape[-1])  # (b·T, d)
        self.x.append(flat[index[few].to(flat.device)].float().cpu())
        batch = torch.full_like(few, number)
        self.table.append(torch.stack([batch, index[few], tokens.token[few], tokens.key[few], tokens.block[few]], 1))
        if not side.sinks:
            norms = Norms.of(bare_rows(flat[side.counts(number, stack, x.shape[1]).to(flat.device)]))
            self.norms = norms if self.norms is None else self.norms + norms


def fit_pass(plan: TangentPlan, group: TapeTargets, side: Side) -> FitResult:
    """Run the fit tokens through the model once and fit the bases of every stage of a group."""
    sampled = _sample(plan, group, side)
    result = FitResult({}, [], {})
    for stage in fit_stages(plan, group):
        if stage.name not in sampled:
            continue
        rows = sampled.pop(stage.name)
        x, table, longest = _without_massive(stage, side, rows)
        if plan.balance is not None and bool((table[:, _TOKEN] >= 0).all()):
            even = type_balanced(table[:, _TOKEN], table[:, _KEY], plan.balance)
            x, table = x[even], table[even]
        fitted = result.bases[stage.name] = fit_site_bases(
            x,
            plan.tangent.proxies,
            plan.tangent.ranks,
            seed=plan.seed,
            clusters=CLUSTERS if stage.gradient == HIDDEN else 0,
            longest=longest,
        )
        if stage.gradient == HIDDEN:
            result.records.extend(_frequency_records(plan, stage.name, x, table, side))
            result.records.extend(_concept_records(stage.name, x, fitted))
            result.concepts.update(_concepts_in_words(plan, stage.name, x, table, fitted, side))
    return result


def _sample(plan: TangentPlan, group: TapeTargets, side: Side) -> dict[str, _SampledRows]:
    stages = fit_stages(plan, group)
    sampled: dict[str, _SampledRows] = {}
    with torch.no_grad(), record_tape(plan.model, plan.layout, group) as tape:
        for number, batch in enumerate(side.batches):
            run_model(plan.model, plan.objective.prepare(batch)[0], tape)
            for stage in stages:
                x = _activations(stage, tape)
                if x is not None:
                    sampled.setdefault(stage.name, _SampledRows()).add(plan, side, number, stage.site.stack, x)
            if plan.progress is not None:
                plan.progress(int(batch.counts.sum()))
    return sampled


def _activations(stage: Stage, tape: Tape) -> Tensor | None:
    """What is fitted on, (b, T, d): the stream, the inputs of a reader, the outputs of the embedding table."""
    tensors = tape.inputs if stage.gradient == WEIGHT_IN else tape.outputs
    if stage.gradient != HIDDEN and stage.name not in tensors:
        return None
    return tape.rows(stage.name, tensors[stage.name])


def _without_massive(stage: Stage, side: Side, rows: _SampledRows) -> tuple[Tensor, Tensor, float]:
    """The rows that count under the token policy, their table, and the norm above which rows are massive.

    Sites of the stream flag tokens for all later stages. The embedding table comes before them and leaves out only
    what is massive in it; the inputs of linear maps flag nothing.
    """
    x, table = torch.cat(rows.x), torch.cat(rows.table)
    if rows.norms is None:
        return x, table, float("inf")
    longest = massive_norm(rows.norms.median)
    massive = ~(torch.linalg.vector_norm(x, dim=1) <= longest)  # NaN is massive too
    if stage.gradient == HIDDEN:
        side.flagged.flag(stage.site, table[massive, _KEY])
    if stage.gradient != EMBEDDING:
        massive = torch.isin(table[:, _KEY], side.flagged.at(stage.site))
    return x[~massive], table[~massive], longest


def _frequency_records(plan: TangentPlan, name: str, x: Tensor, table: Tensor, side: Side) -> list[Record]:
    token, key, block = table[:, _TOKEN], table[:, _KEY], table[:, _BLOCK]
    if not bool((token >= 0).all()):
        return []
    counts: Mapping[int, int] = plan.counts or _count_tokens(side)
    result = frequency_distance(x, token, token_counts(token, counts), key, block, seed=plan.seed)
    if result is None:
        note = "fewer than 8 token types occur four times; use more fit tokens"
        return [Record(name, "frequency_distance", None, note=note)]
    kind = f"jackknife-{len(block.unique())}-{side.unit}"
    note = f"{result.types} types"
    p_note = f"{note}, p {result.p:.3g} that permuted frequencies are as negative"
    forms = (
        ("pearson", result.pearson, result.pearson_error, note),
        ("spearman", result.spearman, result.spearman_error, note),
        ("split_half", result.split_half, None, p_note),
    )
    return [
        Record(
            name,
            "frequency_distance",
            value,
            variant={"form": form},
            error=error,
            error_kind=None if error is None else kind,
            null=0.0 if form == "split_half" else None,
            n=len(x),
            note=remark,
        )
        for form, value, error, remark in forms
    ]


def _count_tokens(side: Side) -> dict[int, int]:
    token = torch.cat([batch.token[batch.counts] for batch in side.batches])
    return dict(zip(*(part.tolist() for part in token.unique(return_counts=True)), strict=True))


def _concept_records(name: str, x: Tensor, fitted: SiteBases) -> list[Record]:
    """Effective rank and error of each semi-NMF."""
    out = []
    for basis in fitted.bases:
        if basis.directions is not None:
            factors = factorise(x, basis.rank, rounds=1, start=basis.directions.T)
            variant = {"proxy": basis.proxy}
            for metric, value in (("concept_rank", factors.effective_rank), ("concept_error", factors.error)):
                out.append(Record(name, metric, value, index=basis.rank, variant=variant, n=len(x)))
    return out


def _concepts_in_words(
    plan: TangentPlan, name: str, x: Tensor, table: Tensor, fitted: SiteBases, side: Side
) -> dict[str, Any]:
    """The concepts of each semi-NMF as tokens and contexts."""
    decode = plan.decode
    if decode is None or not bool((table[:, _TOKEN] >= 0).all()):
        return {}

    def context(row: int, around: int) -> list[int]:
        batch = side.batches[int(table[row, _BATCH])]
        window, position = divmod(int(table[row, _INDEX]), batch.token.shape[1])
        ids = batch.token[window, max(0, position - around) : position + around + 1]
        return ids[ids >= 0].tolist()

    out = {}
    for basis in fitted.bases:
        if basis.directions is not None:
            concepts = read_concepts(x, basis.directions.T, table[:, _TOKEN], context, decode)
            out[f"{name} {basis.proxy} {basis.rank}"] = [vars(concept) for concept in concepts]
    return out
