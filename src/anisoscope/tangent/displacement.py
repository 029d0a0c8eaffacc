"""Does training move activations along the bases? The change of the same tokens between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import torch

from anisoscope.hooks.backward import TapeTargets, differentiable, record_tape, run_model
from anisoscope.records import Record
from anisoscope.tangent.energy import chance
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradient_pass import StreamSums, flag_massive
from anisoscope.tangent.gradients import ROWS
from anisoscope.tangent.random_subspaces import orientation
from anisoscope.tangent.site_bases import SiteBases
from anisoscope.tangent.splits import Side
from anisoscope.tangent.tangent_plan import TangentPlan, stream_stages

DISPLACEMENT = "displacement"


def displacement_pass(
    plan: TangentPlan, group: TapeTargets, side: Side, bases: Mapping[str, SiteBases]
) -> list[Record]:
    """Run the test tokens through the model and through its earlier step; the share of the change in each basis."""
    assert plan.earlier is not None
    changes = StreamSums(side, bases)
    stages = stream_stages(group.sites)
    stream = TapeTargets(group.sites)
    with differentiable(plan.earlier), torch.no_grad(), ExitStack() as hooks:
        now = hooks.enter_context(record_tape(plan.model, plan.layout, stream))
        before = hooks.enter_context(record_tape(plan.earlier, plan.layout, stream))
        for number, batch in enumerate(side.batches):
            inputs = plan.objective.prepare(batch)[0]
            run_model(plan.model, inputs, now)
            run_model(plan.earlier, inputs, before)
            flag_massive(side, number, stages, now, bases)
            for stage in stages:
                change = now.outputs[stage.name] - before.outputs[stage.name].to(now.outputs[stage.name])
                changes.add(number, stage, now, change, None)
    cases = [
        GradientCase(name, DISPLACEMENT, bases[name], sums, unit=side.unit, seed=plan.seed)
        for name, sums in changes.sums.items()
    ]
    return [record for case in cases for record in displacement_records(case)]


def displacement_records(case: GradientCase) -> list[Record]:
    """‖ΔH Q‖²/‖ΔH‖² of each basis, with the probability that a random subspace holds as much.

    The sums of the case are those of ΔH instead of gradients.
    """
    bases = case.fitted.bases
    energies, pooled = case.sums.energies(bases), case.sums.pooled
    out = []
    for kind, rows in enumerate(ROWS):
        levels = orientation(pooled[kind], bases, case.fitted, case.seed)
        for i, (basis, level) in enumerate(zip(bases, levels, strict=True)):
            variant = {"proxy": basis.proxy, "rows": rows}
            make = partial(case.record, index=basis.rank)
            value, error = float(energies.value[kind, i]), energies.error(kind, i)
            out.append(make("displacement_energy", value, error=error, null=chance(basis), variant=variant))
            out.append(make("gradient_p", level.p, variant={**variant, "null": orientation.name}))
    return out
