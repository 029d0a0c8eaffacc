"""The gradients of one training step, on all ranks: armed by `probe`, summed and compared with bases by `watch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from anisoscope.data.inputs import device_of
from anisoscope.distributed import Ranks, add_moments_on_first
from anisoscope.hooks import Layout
from anisoscope.hooks.training_step import GradientRecorder
from anisoscope.metrics import find
from anisoscope.records import Record, Site
from anisoscope.stats.moments import Moments
from anisoscope.tracker.step_gradients import (
    METRICS,
    Bases,
    alignment_records,
    chosen_weights,
    gradient_records,
    weight_moments,
)


class GradientWatch:
    """Records of d loss/d h at every residual site, and of the gradients of chosen weights.

    Args:
        model: The bare model.
        layout: Its layout.
        ranks: The processes of the job.
        bases: What the gradients are compared with.
        hidden: Measure d loss/d h.
        weights: Names of parameters whose `.grad` is measured.
        average: Gradients are averaged over ranks.
        strict: Raise if a site fails.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        ranks: Ranks,
        bases: Bases,
        *,
        hidden: bool,
        weights: Sequence[str],
        average: bool,
        strict: bool,
    ) -> None:
        self.recorder = GradientRecorder(model, layout, strict=strict) if hidden else None
        self.metrics = find(METRICS)
        self._model = model
        self._sites = sorted(site for site in layout.sites() if site.kind == "resid")
        self._weights = chosen_weights(model, weights)
        self._ranks = ranks
        self._bases = bases
        self._average = average
        self._strict = strict

    def arm(self) -> None:
        """Hook the next forward."""
        if self.recorder is not None:
            self.recorder.arm()

    def disarm(self) -> None:
        """Remove all hooks."""
        if self.recorder is not None:
            self.recorder.disarm()

    def finish(self, step: int) -> str | None:
        """End the recording on this rank; return what is wrong if it saw no forward or no backward."""
        if self.recorder is None:
            return None
        self.recorder.disarm()
        reason = self._why_no_gradients(self.recorder, step)
        self.recorder.replay()
        return reason

    def shared(self, reason: str | None, covered: set[bytes]) -> tuple[bool, int]:
        """Return, the same on every rank, whether no rank has gradients, and how many of its windows are held out."""
        if self.recorder is None:
            return False, 0
        overlap = len(self.recorder.windows & covered)
        like = torch.zeros(1, device=device_of(self._model))
        missing, overlap = self._ranks.add(like.new_tensor([float(reason is not None), float(overlap)])).int().tolist()
        return missing == self._ranks.world, overlap

    def sums(self) -> dict[Site, Moments | str]:
        """Return the gradients by site, summed over ranks on rank 0, or why there are none. All ranks call this."""
        by_site: dict[Site, Moments | str] = {}
        if self.recorder is not None:
            by_site |= self._sum_over_ranks(self.recorder)
            self.recorder.clear()
        return by_site | weight_moments(self._weights)

    def records(
        self,
        by_site: dict[Site, Moments | str],
        make: Callable[..., Record],
        *,
        overlap: int,
        scale: float,
        weight_scale: float,
    ) -> list[Record]:
        """Return the records of all sites; a site that fails gets a record with the reason, unless `strict`."""
        records: list[Record] = []
        hidden_scale = scale * (self._ranks.world if self._average else 1)  # each rank's loss is its own mean
        for site, moments in by_site.items():
            site_scale = hidden_scale if site.kind == "resid" else weight_scale
            try:
                records += self._site_records(site, moments, overlap, site_scale, make)
            except Exception as error:
                if self._strict:
                    raise
                records.append(make(str(site), "gradient_norm", None, note=f"{type(error).__name__}: {error}"))
        return records

    def _why_no_gradients(self, recorder: GradientRecorder, step: int) -> str | None:
        if not recorder.forwards:
            return (
                f"No forward of {type(self._model).__name__} ran between probe({step}) and watch({step}). Give the "
                "tracker the model that is trained, and call probe before its forward."
            )
        if not recorder.has_gradients:
            return (
                f"No gradient was computed between probe({step}) and watch({step}). Call watch after loss.backward()."
            )
        return None

    def _sum_over_ranks(self, recorder: GradientRecorder) -> dict[Site, Moments | str]:
        parts = [recorder.moments.get(site) for site in self._sites]
        widths = self._widths(parts)
        like = torch.zeros(0, dtype=torch.float64, device=_exchange_device(self._model))
        totals = add_moments_on_first(parts, widths, self._ranks, like)
        return {
            replace(site, grad=True): recorder.reason(site) if total is None else total
            for site, total in zip(self._sites, totals, strict=True)
        }

    def _widths(self, parts: Sequence[Moments | None]) -> list[int]:
        """The width of each site, the same on all ranks; a rank may have no rows of its own."""
        if self._ranks.world == 1:
            return []
        like = torch.zeros(1, device=device_of(self._model))
        mine = like.new_tensor([0.0 if part is None else float(part.dim) for part in parts])
        counts = like.new_tensor([float(part is not None) for part in parts])
        widths, seen = self._ranks.add(torch.stack((mine, counts))).tolist()
        return [int(width / max(1.0, count)) for width, count in zip(widths, seen, strict=True)]

    def _site_records(
        self, site: Site, moments: Moments | str, overlap: int, scale: float, make: Callable[..., Record]
    ) -> list[Record]:
        if isinstance(moments, str):
            return [make(str(site), "gradient_norm", None, note=moments)]
        records = gradient_records(site, moments, self.metrics, scale=scale, make=make)
        if records[0].value is None or site.kind != "resid":
            return records
        if overlap:
            note = (
                f"{overlap} windows of this batch are among the held-out tokens that the bases are fitted on, and a "
                "gradient lies in the span of its own activations by construction. Hold other tokens out."
            )
            return [*records, make(str(site), "gradient_energy", None, note=note)]
        return [*records, *alignment_records(site, moments, self._bases, make=make)]


def _exchange_device(model: nn.Module) -> torch.device:
    """Where float64 sums are exchanged: the model's device, or the CPU if it has no float64."""
    device = device_of(model)
    return torch.device("cpu") if device.type == "mps" else device
