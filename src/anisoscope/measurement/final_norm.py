"""The final norm: its gain and bias, and the final states if these are reset, zeroed or permuted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anisoscope.distributed import unwrapped
from anisoscope.errors import InputError
from anisoscope.hooks import Layout
from anisoscope.metrics import find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Record
from anisoscope.stats.collect import collect
from anisoscope.stats.rows import Rows

METRICS = ("mean_cosine", "drift_norm", "relative_drift", "spectral_anisotropy", "isoscore", "partition_isotropy")
PERMUTATIONS = 20


def final_norm(model: nn.Module, layout: Layout) -> nn.Module:
    """Return the final norm of the last stack."""
    path = layout.stacks[-1].final
    if path is None:
        raise InputError(f"{type(model).__name__} has no final norm after its last block")
    return unwrapped(model).get_submodule(path)


def gain_and_bias(norm: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The effective gain γ and bias β of a norm, (d,) each, or None if it has none.

    Some norms store γ − 1: with stored weights of zero their output is not zero, which tells them apart.
    """
    parameters = dict(norm.named_parameters(recurse=False))
    stored, bias = parameters.get("weight"), parameters.get("bias")
    gain = None if stored is None else stored.detach() + (0.0 if _multiplies(norm, stored) else 1.0)
    return gain, None if bias is None else bias.detach()


def norm_variants(norm: nn.Module, x: Tensor, seed: int, permutations: int) -> Iterator[tuple[str, int, Tensor]]:
    """Return the norm's output for rows x (n, d) with gain and bias unchanged, each reset, both reset, and permuted."""
    parameters = dict(norm.named_parameters(recurse=False))
    gain, bias = parameters.get("weight"), parameters.get("bias")
    neutral = None if gain is None else torch.full_like(gain, float(_multiplies(norm, gain)))
    nothing = None if bias is None else torch.zeros_like(bias)
    yield "as trained", 0, _run(norm, x, gain, bias)
    if gain is not None:
        yield "gain reset", 0, _run(norm, x, neutral, bias)
    if bias is not None:
        yield "bias reset", 0, _run(norm, x, gain, nothing)
    if gain is not None and bias is not None:
        yield "both reset", 0, _run(norm, x, neutral, nothing)
    make = torch.Generator().manual_seed(seed)
    for number in range(permutations):
        order = torch.randperm(x.shape[1], generator=make).to(x.device)
        yield "permuted", number, _run(norm, x, _at(gain, order), _at(bias, order))


def norm_effect(
    norm: nn.Module, rows: Rows, *, run: str, site: str, unit: str, tokens: str, seed: int, errors: bool
) -> list[MetricResult]:
    """Mean and isotropy of the final states under each variant of the norm, from the sampled inputs of the norm.

    `permuted` (gain and bias moved to other coordinates, in step) is the control: its records hold the mean and the
    standard deviation over the permutations.
    """
    by_block = rows.take(torch.sort(rows.tokens.block, stable=True).indices)
    metrics = find(METRICS)
    names = set().union(*(metric.sources for metric in metrics))
    out: list[MetricResult] = []
    permuted: dict[tuple[str, str], list[Record]] = {}
    with torch.inference_mode():
        for name, _, y in norm_variants(norm, by_block.x, seed, PERMUTATIONS):
            rows_here = Rows(y, by_block.tokens)
            alone = name == "permuted"
            cloud = collect(lambda rows_here=rows_here: [rows_here], names)  # type: ignore[misc]
            for each in evaluate(
                cloud, metrics, site=site, run=run, tokens=tokens, unit=unit, errors=errors and not alone
            ):
                record = replace(each.record, variant={**each.record.variant, "norm": name})
                if alone:
                    permuted.setdefault((record.metric, str(sorted(record.variant.items()))), []).append(record)
                else:
                    out.append(MetricResult(record, each.replicates))
    return out + [MetricResult(_over_permutations(records)) for records in permuted.values()]


def _over_permutations(records: list[Record]) -> Record:
    values = [record.value for record in records if record.value is not None]
    if len(values) < 2:
        return records[0]
    return replace(
        records[0],
        value=statistics.fmean(values),
        error=statistics.stdev(values),
        error_kind=f"deviation-{len(values)}-permutations",
        null=None,
    )


def _run(norm: nn.Module, x: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
    replaced = {name: value for name, value in (("weight", gain), ("bias", bias)) if value is not None}
    result: Tensor = functional_call(norm, replaced, (x,))
    return result


def _at(values: Tensor | None, order: Tensor) -> Tensor | None:
    return None if values is None else values[order]


def _multiplies(norm: nn.Module, gain: Tensor) -> bool:
    """Return whether the stored weight is the gain itself."""
    x = torch.linspace(-1, 1, len(gain), dtype=gain.dtype, device=gain.device)[None]
    zero = {name: torch.zeros_like(p) for name, p in norm.named_parameters(recurse=False)}
    with torch.no_grad():
        return bool((functional_call(norm, zero, (x,)) == 0).all())
