"""The pass over fit tokens: a keyed sample of rows at every place, and the frames that are fitted on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisoscope.capture.backward import Places, Tape, forward, watching
from anisoscope.records import Record
from anisoscope.tangent.concepts import read_concepts
from anisoscope.tangent.frequency import frequency_distance, token_counts, type_balanced
from anisoscope.tangent.patches import CLUSTERS
from anisoscope.tangent.semi_nmf import factorise
from anisoscope.tangent.site_bases import SiteBases, fit_site_bases
from anisoscope.tangent.splits import Side
from anisoscope.tangent.tangent_plan import TangentPlan, linears_of, stacks_of

MASSIVE = 5.0  # rows longer than this many medians are sinks wherever they stand
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Fitted:
    frames: dict[str, SiteBases]  # by site, by the path of a linear map (its inputs), by that of the embedding
    records: list[Record]
    concepts: dict[str, Any]


@dataclass
class _KeptTokens:
    """Rows of one place from the fit pass, and which tokens they are: batch, flat place, token, key, block."""

    x: list[Tensor]
    table: list[Tensor]  # (n, 5) each

    def all(self) -> tuple[Tensor, Tensor]:
        return torch.cat(self.x), torch.cat(self.table)


def fit_pass(
    task: TangentPlan,
    places: Places,
    side: Side,
    counts: Mapping[int, int] | None,
    decode: Decode | None,
    progress: Callable[[int], None] | None,
) -> Fitted:
    """One pass over the fit tokens: a keyed sample of rows at every place, and the frames that are fitted on them."""
    share = min(1.0, task.sample / max(1, len(side)))
    readers = {reader for reader, _ in linears_of(task, places.sites).values() if reader is not None}
    stacks = stacks_of(task, places)
    kept: dict[str, _KeptTokens] = {}
    with torch.no_grad(), watching(task.model, task.layout, places) as seen:
        for number, batch in enumerate(side.batches):
            forward(task.model, task.objective.prepare(batch)[0], seen)
            for name, x in _activations(places, readers, seen):
                _keep(kept.setdefault(name, _KeptTokens([], [])), side, number, stacks[name], x, share)
            if progress is not None:
                progress(int(batch.counts.sum()))
    frames, records, concepts = {}, [], {}
    for name in list(kept):
        x, table = kept.pop(name).all()
        x, table, longest = (x, table, float("inf")) if side.sinks else _without_massive(x, table)
        if task.balance is not None and bool((table[:, 2] >= 0).all()):
            even = type_balanced(table[:, 2], table[:, 3], task.balance)
            x, table = x[even], table[even]
        of_stream = name in {str(site) for site in places.sites}
        frames[name] = fit_site_bases(
            x,
            task.tangent.proxies,
            task.tangent.ranks,
            seed=task.seed,
            clusters=CLUSTERS if of_stream else 0,
            longest=longest,
        )
        if of_stream:
            records += _frequency_records(name, x, table, counts, side, task.seed)
            more, readable = _concept_records(name, x, table, frames[name], side, decode)
            records += more
            concepts.update(readable)
    return Fitted(frames, records, concepts)


def _without_massive(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor, float]:
    """Rows without those that outweigh the median row, and the length up to which rows count."""
    length = torch.linalg.vector_norm(x, dim=1)
    longest = MASSIVE * length.median()
    return x[length <= longest], table[length <= longest], float(longest)


def _activations(places: Places, readers: set[str], seen: Tape) -> Iterator[tuple[str, Tensor]]:
    """What is fitted on: the stream at its sites, inputs of readers, outputs of the embedding table, (b, T, d) each."""
    for site in places.sites:
        yield str(site), seen.rows(str(site), seen.outputs[str(site)])
    for path in sorted(readers & set(seen.inputs)):
        yield path, seen.rows(path, seen.inputs[path])
    if places.embedding is not None and places.embedding in seen.outputs:
        yield places.embedding, seen.rows(places.embedding, seen.outputs[places.embedding])


def _keep(kept: _KeptTokens, side: Side, number: int, stack: str, x: Tensor, share: float) -> None:
    """The tokens with the smallest keys: the same ones at every place."""
    place, tokens = side.chosen(number, stack, x.shape[1])
    few = (tokens.key.double() <= share * 2**63).nonzero()[:, 0]
    flat = x.detach().reshape(-1, x.shape[-1])  # (b·T, d)
    kept.x.append(flat[place[few].to(flat.device)].float().cpu())
    batch = torch.full_like(few, number)
    kept.table.append(torch.stack([batch, place[few], tokens.token[few], tokens.key[few], tokens.block[few]], 1))


def _frequency_records(
    name: str, x: Tensor, table: Tensor, counts: Mapping[int, int] | None, side: Side, seed: int
) -> list[Record]:
    token, key, block = table[:, 2], table[:, 3], table[:, 4]
    if not bool((token >= 0).all()):
        return []
    every = torch.cat([batch.token[batch.counts] for batch in side.batches])
    table_of = counts or dict(zip(*(part.tolist() for part in every.unique(return_counts=True)), strict=True))
    found = frequency_distance(x, token, token_counts(token, table_of), key, block, seed=seed)
    if found is None:
        note = "fewer than 8 types of tokens occur four times; give more fit tokens"
        return [Record(name, "frequency_distance", None, note=note)]
    kind = f"jackknife-{len(block.unique())}-{side.unit}"
    note = f"{found.types} types"
    forms = (
        ("pearson", found.pearson, found.pearson_error, note),
        ("spearman", found.spearman, found.spearman_error, note),
        ("split_half", found.split_half, None, f"{note}, p {found.p:.3g} that permuted frequencies are as negative"),
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
            note=about,
        )
        for form, value, error, about in forms
    ]


def _concept_records(
    name: str, x: Tensor, table: Tensor, frame: SiteBases, side: Side, decode: Decode | None
) -> tuple[list[Record], dict[str, Any]]:
    """Effective rank and error of each semi-NMF, and its concepts in words."""
    records: list[Record] = []
    readable: dict[str, Any] = {}

    def context(row: int, around: int) -> list[int]:
        batch = side.batches[int(table[row, 0])]
        line, at = divmod(int(table[row, 1]), batch.token.shape[1])
        ids = batch.token[line, max(0, at - around) : at + around + 1]
        return ids[ids >= 0].tolist()

    for basis in frame.bases:
        if basis.directions is None:
            continue
        found = factorise(x, basis.rank, rounds=1, start=basis.directions.T)
        variant = {"proxy": basis.proxy}
        records.append(Record(name, "concept_rank", found.effective_rank, index=basis.rank, variant=variant, n=len(x)))
        records.append(Record(name, "concept_error", found.error, index=basis.rank, variant=variant, n=len(x)))
        if decode is not None and bool((table[:, 2] >= 0).all()):
            concepts = read_concepts(x, basis.directions.T, table[:, 2], context, decode)
            readable[f"{name} {basis.proxy} {basis.rank}"] = [vars(concept) for concept in concepts]
    return records, readable
