"""The driver inside a training loop: `probe` before the forward, `watch` before the optimiser's step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope import schedule as schedules
from anisoscope.capture import find_layout
from anisoscope.capture.invisible import side_effect_free
from anisoscope.capture.training_step import GradientRecorder
from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.windows import covered, fingerprint, probe_batches
from anisoscope.distributed import add_over_ranks, is_sharded, joined_ranks, unwrapped
from anisoscope.errors import CaptureError, InputError
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.run_output import run_info
from anisoscope.metrics import Metric, find
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record, Site
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Sample
from anisoscope.tangent import Tangent
from anisoscope.tracker.clock import Clock
from anisoscope.tracker.journal import Journal, Log, Rule, open_run
from anisoscope.tracker.probe import Probe, default_policy
from anisoscope.tracker.step_gradients import (
    CLOSED_FORM,
    METRICS,
    Bases,
    alignment_records,
    chosen_weights,
    gradient_cards,
    gradient_records,
    weight_moments,
)


class Tracker:
    """Follows a model's geometry over its training: layers, dimension, attention, and gradients against proxies.

    >>> tracker = Tracker(model, probe=held_out, out="runs/exp1")           # doctest: +SKIP
    >>> for step, batch in enumerate(loader):                               # doctest: +SKIP
    ...     tracker.probe(step)
    ...     model(**batch).loss.backward()
    ...     tracker.watch(step)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> tracker.close()                                                     # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        out: str | Path,
        *,
        schedule: schedules.Schedule | None = None,  # log-spaced to step 200, then every 200
        metrics: Sequence[str | Metric] | None = None,  # probing.METRICS
        sites: Sequence[str] | None = None,  # embed, resid, pattern (where attention shows it), final
        gradients: bool = True,  # d loss/d h at every residual site of the live batch
        weights: Sequence[str] = (),  # parameters whose .grad is looked at too
        tangent: Tangent | None = None,  # PCA of rank 8 and 32, against the null in closed form
        reference: int = 0,  # the first probe from this step on is what drift is measured from
        alerts: Sequence[Rule] = (),  # rules such as those of `anisoscope.alerts`
        log: Sequence[Log] = (),  # anything that takes records, such as `integrations.to_wandb()`
        bars_every: int | None = 10,  # error bars cost a jackknife: at every tenth probe; None: never
        max_overhead: float | None = None,  # share of the loop's own time; due steps beyond it are left out
        average: bool = True,  # gradients are averaged over ranks, as DDP and FSDP do
        sample: int = 1024,  # tokens kept for neighbours, pairs and bases
        seed: int = 0,
        resume: int | None = None,  # continue the run in `out`: the step at which training starts again
        strict: bool = False,  # raise where a metric fails, instead of writing down that it did
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """`probe` is a held-out batch (or a list of them) such as `model` is trained on: fixed, so steps are paired."""
        self.should_stop = False
        self._ranks = joined_ranks()
        self._model = unwrapped(model)
        self._sharded = is_sharded(self._model)
        self._schedule = schedule or schedules.default()
        self._max_overhead = max_overhead
        self._bars_every = bars_every
        self._average = average
        self._strict = strict
        self._weights = chosen_weights(self._model, weights)
        batches = probe_batches(self._model, probe)
        with side_effect_free(self._model):
            self._model.eval()
            self._layout = find_layout(self._model, first_item(batches[0], device_of(self._model)))
        self._covered = covered(batches)
        self._probe = Probe(
            self._model,
            self._layout,
            batches,
            sites=sites,
            metrics=metrics,
            reference=reference,
            sample=sample,
            seed=seed,
            strict=strict,
        )
        self._gradient_metrics = find(METRICS)
        self._bases = Bases(tangent or Tangent(nulls=CLOSED_FORM), seed)
        self._live = GradientRecorder(self._model, self._layout, strict=strict) if gradients else None
        # hooks go with the tracker also where an exception has carried it away before `close`
        self._release = None if self._live is None else weakref.finalize(self, self._live.disarm)
        self._step: int | None = None  # that probe was called with last
        self._due = False  # whether that step is watched
        self._probes = 0
        self._watched = 0
        self._skipped = 0
        self._clock = Clock()
        self._journal: Journal | None = None
        if self._ranks.rank == 0:
            about = self._about(dict(info or {}), sample, seed)
            self._journal = Journal(open_run(out, about, resume), log, alerts, strict=strict)
            if resume is not None:
                self._continue()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the three calls of a training loop -----------------------------------------------------------------------

    def probe(self, step: int) -> None:
        """Before the forward of a step: if it is due, measure the held-out tokens and arm `watch`."""
        self._step = step
        if self._due and self._live is not None:
            self._live.disarm()  # the step before failed, or was not watched
        self._due = self._schedule(step) and self._affordable()
        if self._due:
            with self._clock.working():
                self._look(step)
                if self._live is not None:
                    self._live.arm()

    def watch(self, step: int, *, scale: float = 1.0, weight_scale: float | None = None) -> None:
        """After backward, before the optimiser's step: if it is due, the true gradients of the live batch.

        `scale` is the loss scale that is in the gradients, such as `scaler.get_scale()`: lengths are divided by it,
        everything else is free of it. `weight_scale` is what is still in the weights' own: 1 after `scaler.unscale_`.
        """
        if step != self._step:
            before = "without any probe" if self._step is None else f"after probe({self._step})"
            raise InputError(
                f"watch({step}) {before}: call tracker.probe({step}) before the forward of the same step, "
                "which is when the hooks for the gradients are put in place"
            )
        if self._due:
            self._due = False
            with self._clock.working(more=True):
                self._read_gradients(step, scale, scale if weight_scale is None else weight_scale)

    def close(self) -> None:
        """Take every hook away and finish the run; call it at the end, or use the tracker in a `with`."""
        if self._live is not None:
            self._live.disarm()
        if self._journal is not None:
            self._journal.tell(tracker=self._own_facts())
            self._journal.run.close()

    @property
    def overhead(self) -> float:
        """Time spent here as a share of the loop's own time so far."""
        return self._clock.overhead

    # --- probing --------------------------------------------------------------------------------------------------

    def _affordable(self) -> bool:
        """Whether there is time for one more; rank 0's clock decides for all."""
        if self._max_overhead is None:
            return True
        fits = self._ranks.agree(self._clock.affords(self._max_overhead))
        self._skipped += not fits
        return fits

    def _look(self, step: int) -> None:
        """Rank 0 looks; where parameters are sharded it needs the others for its forward."""
        if self._journal is not None or self._sharded:
            errors = self._bars_every is not None and self._probes % self._bars_every == 0
            survey = self._probe.run(errors=errors)
            self._probes += 1
            if self._journal is not None:
                self._evaluate(self._journal, survey, step, errors)
        self._agree_to_stop()

    def _evaluate(self, journal: Journal, survey: Engine, step: int, errors: bool) -> None:
        """One look's numbers, published together when all sites are done."""
        known = self._probe.reference_step
        measured: list[MetricResult] = []
        try:
            for done in self._probe.evaluated(survey, run=journal.run.name, step=step, errors=errors):
                measured += done.measured
                if self._live is not None and done.site.kind == "resid":
                    self._fit(journal, done.site, done.clouds[default_policy(done)], step)
        except Exception as error:  # outside any metric: what is done counts, and training goes on
            if self._strict:
                raise
            why = f"{type(error).__name__}: {error}"
            measured.append(MetricResult(Record(self._probe.sites[0], "probe", None, step=step, note=why)))
        journal.publish([m.record for m in measured], [m.replicates or None for m in measured])
        if known != self._probe.reference_step:
            journal.keep(self._probe.reference, step, "reference")
        journal.tell(tracker=self._own_facts())

    def _fit(self, journal: Journal, site: Site, cloud: Cloud, step: int) -> None:
        """The bases of a site from its held-out rows; those that freeze go to the run, for a training that restarts."""
        if self._bases.fit(site, cloud, step):
            journal.keep({str(site): Cloud({"Sample": cloud.get(Sample)})}, step, "frozen")

    # --- gradients ------------------------------------------------------------------------------------------------

    def _read_gradients(self, step: int, scale: float, weight_scale: float) -> None:
        found: dict[Site, Moments | str] = {}
        overlap = 0
        if self._live is not None:
            self._live.disarm()
            self._clock.add(self._live.seconds, more=True)  # of the hooks, inside the user's own backward
            silent = self._ranks.gather(self._silence(self._live, step))
            if silent[0] is not None and all(silent):
                self._report_silence(silent[0], step)
                return
            self._live.replay()
            found = self._summed(self._live)
            overlap = sum(self._ranks.gather(len(self._live.windows & self._covered)))
            self._live.clear()
            self._watched += 1
        found |= weight_moments(self._weights)
        if self._journal is not None:
            make = partial(Record, run=self._journal.run.name, step=step)
            records: list[Record] = []
            for site, moments in found.items():
                hidden = scale * (self._ranks.world if self._average else 1)  # each rank's loss is a mean of its own
                by = hidden if site.kind == "resid" else weight_scale
                try:
                    records += self._of_site(site, moments, overlap, by, make)
                except Exception as error:
                    if self._strict:
                        raise
                    records.append(make(str(site), "gradient_norm", None, note=f"{type(error).__name__}: {error}"))
            self._journal.publish(records)
        self._agree_to_stop()

    def _silence(self, live: GradientRecorder, step: int) -> str | None:
        """Why there is nothing to read: probe and watch do not enclose a forward and a backward of this model."""
        if not live.forwards:
            return (
                f"no forward of {type(self._model).__name__} ran between probe({step}) and watch({step}); give the "
                "tracker the very model that is trained, and call probe before its forward"
            )
        if not live.has_gradients:
            return f"no gradient was computed between probe({step}) and watch({step}); call watch after loss.backward()"
        return None

    def _report_silence(self, why: str, step: int) -> None:
        """Misplaced calls show at the first step that is watched, and raise; later ones must not end a training."""
        if self._strict or not self._watched:
            raise CaptureError(why)
        if self._journal is not None:
            self._journal.publish([Record(f"grad.{self._probe.sites[0]}", "gradient_norm", None, step=step, note=why)])

    def _summed(self, live: GradientRecorder) -> dict[Site, Moments | str]:
        """The gradients of all ranks by site, or why there are none."""
        found: dict[Site, Moments | str] = {}
        for site in sorted(site for site in self._layout.sites() if site.kind == "resid"):
            total = add_over_ranks(live.moments.get(site), Moments, self._ranks)
            found[replace(site, grad=True)] = live.reason(site) if total is None else total
        return found

    def _of_site(
        self, site: Site, found: Moments | str, overlap: int, scale: float, make: Callable[..., Record]
    ) -> list[Record]:
        if isinstance(found, str):
            return [make(str(site), "gradient_norm", None, note=found)]
        records = gradient_records(site, found, self._gradient_metrics, scale=scale, make=make)
        if records[0].value is None or site.kind != "resid":
            return records
        if overlap:
            note = (
                f"{overlap} windows of this batch are among the held-out tokens, on which the bases are fitted: "
                "a gradient lies in the span of its own activations by construction; hold other tokens out"
            )
            return [*records, make(str(site), "gradient_energy", None, note=note)]
        return [*records, *alignment_records(site, found, self._bases, make=make)]

    # --- the run --------------------------------------------------------------------------------------------------

    def _agree_to_stop(self) -> None:
        self.should_stop = self._ranks.agree(self._journal.should_stop if self._journal is not None else False)

    def _continue(self) -> None:
        """Take up a run where training starts again: its reference, its count of probes, the rules' memory."""
        assert self._journal is not None
        for step, site, cloud in self._journal.kept("reference"):
            self._probe.reference[site], self._probe.reference_step = cloud, step
        for step, site, cloud in self._journal.kept("frozen"):
            self._bases.fit(Site.parse(site), cloud, step)
        # of the steps that are left: training may start again far before the last probe
        self._probes = self._journal.catch_up()

    def _own_facts(self) -> dict[str, Any]:
        return {
            "probes": self._probes,
            "skipped to stay within max_overhead": self._skipped,
            "seconds": round(self._clock.spent, 3),
            "share of the loop's own time": round(self._clock.overhead, 6),
            "reference": self._probe.reference_step,
        }

    def _about(self, info: dict[str, Any], sample: int, seed: int) -> dict[str, Any]:
        batches = self._probe.batches
        facts = {
            "kind": "training",
            "model": {"architecture": type(self._model).__name__},
            "data": {"source": "held-out tokens", "tokens": self._probe.tokens, "windows": len(self._covered)},
            "probe": fingerprint(self._covered),
            "unit": batches[0].documents_are,
            "seed": seed,
            "sample": sample,
            **info,
        }
        about = run_info(facts, [*self._probe.metrics, *self._gradient_metrics])
        about["metrics"] |= gradient_cards()
        return about
