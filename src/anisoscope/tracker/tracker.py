"""The tracker in a training loop: `probe` before the forward, `watch` before the optimiser's step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope import schedule as schedules
from anisoscope.alerts import Rule
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
from anisoscope.tracker.clock import OverheadClock
from anisoscope.tracker.journal import Journal, Log, open_run
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
    """Measures a model's geometry while it trains: layers, dimension, attention, and gradients against proxies.

    Call `probe` before the forward of each step and `watch` after its backward; steps that the schedule leaves out
    cost next to nothing. Weights, optimiser state and random numbers are bit-identical with and without a tracker.

    >>> tracker = Tracker(model, probe=held_out, out="runs/exp1")           # doctest: +SKIP
    >>> for step, batch in enumerate(loader):                               # doctest: +SKIP
    ...     tracker.probe(step)
    ...     model(**batch).loss.backward()
    ...     tracker.watch(step)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> tracker.close()                                                     # doctest: +SKIP

    Args:
        model: The model that is trained. It may be wrapped by DistributedDataParallel or `torch.compile`.
        probe: A held-out batch, or a list of batches, like those the model is trained on. It is fixed, so that steps
            are compared on the same tokens. Do not train on it.
        out: The folder of the run.
        schedule: Which steps are measured: a function step -> bool, see `anisoscope.schedule`. By default steps 0, 1,
            2, 4, 8, … 128, and then every 200.
        metrics: Metrics of the held-out tokens, by name or as `Metric`. By default `anisoscope.tracker.probe.METRICS`.
        sites: Sites of the held-out tokens. By default embed, resid, pattern (if the attention shows it) and final.
        gradients: Measure d loss/d h of the training batch at every residual site.
        weights: Names of parameters whose `.grad` is measured too.
        tangent: Proxies that the gradients are compared with. By default PCA of ranks 8 and 32, with the null in
            closed form.
        reference: Drift is measured from the first probe at or after this step.
        alerts: Rules such as those of `anisoscope.alerts`.
        log: Functions that take a list of records, such as `anisoscope.integrations.to_wandb()`.
        bars_every: Compute error bars, which cost a jackknife, at every this many probes; None for never.
        max_overhead: Skip due steps if the tracker's time would exceed this share of the rest of the loop's time.
        average: Gradients are averaged over ranks, as DDP and FSDP do.
        sample: Held-out tokens kept for neighbours, pairs and bases.
        seed: Of the sample.
        resume: Continue the run in `out`: the step at which training starts again. Records from this step on are
            discarded.
        strict: Raise if a metric, a rule or a logger fails. By default the failure is recorded and training continues.
        info: More facts for the run's `run.json`.

    Attributes:
        should_stop: Whether a rule wrapped in `alerts.stop` has raised an alert; the same on every rank.

    Raises:
        StoreError: `out` holds a run already and `resume` is None.
        InputError: The probe is empty, a name is unknown, or `out` was measured on another probe.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        out: str | Path,
        *,
        schedule: schedules.Schedule | None = None,
        metrics: Sequence[str | Metric] | None = None,
        sites: Sequence[str] | None = None,
        gradients: bool = True,
        weights: Sequence[str] = (),
        tangent: Tangent | None = None,
        reference: int = 0,
        alerts: Sequence[Rule] = (),
        log: Sequence[Log] = (),
        bars_every: int | None = 10,
        max_overhead: float | None = None,
        average: bool = True,
        sample: int = 1024,
        seed: int = 0,
        resume: int | None = None,
        strict: bool = False,
        info: Mapping[str, Any] | None = None,
    ) -> None:
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
            strict=strict,
            options={"sample": sample, "seed": seed},
        )
        self._gradient_metrics = find(METRICS)
        self._bases = Bases(tangent or Tangent(nulls=CLOSED_FORM), seed)
        self._recorder = GradientRecorder(self._model, self._layout, strict=strict) if gradients else None
        # removes the hooks even if an exception discards the tracker before `close`
        self._release = None if self._recorder is None else weakref.finalize(self, self._recorder.disarm)
        self._step: int | None = None  # of the last call of `probe`
        self._due = False  # whether that step is watched
        self._probes = 0
        self._watched = 0
        self._skipped = 0
        self._clock = OverheadClock()
        self._journal: Journal | None = None  # on rank 0 only
        if self._ranks.rank == 0:
            about = self._run_info(dict(info or {}), sample, seed)
            self._journal = Journal(open_run(out, about, resume), log, alerts, strict=strict)
            if resume is not None:
                self._restore(self._journal)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the three calls of a training loop -----------------------------------------------------------------------

    def probe(self, step: int) -> None:
        """Measure the held-out tokens if the step is due, and prepare `watch`. Call it before the step's forward.

        Args:
            step: The number of the step; steps are expected in increasing order.
        """
        self._step = step
        if self._due and self._recorder is not None:
            self._recorder.disarm()  # the last step failed, or was not watched
        self._due = self._schedule(step) and self._is_affordable()
        if self._due:
            with self._clock.working():
                self._measure_probe(step)
                if self._recorder is not None:
                    self._recorder.arm()

    def watch(self, step: int, *, scale: float = 1.0, weight_scale: float | None = None) -> None:
        """Measure the true gradients of the training batch if the step is due.

        Call it after backward and before the optimiser's step.

        Args:
            step: The step that `probe` was called with.
            scale: The loss scale in the gradients, such as `scaler.get_scale()`. Norms are divided by it; all other
                metrics do not depend on it.
            weight_scale: The scale still in the weights' gradients, if it differs: 1 after `scaler.unscale_`.

        Raises:
            InputError: `probe` was not called with this step.
            CaptureError: At the first due step, if no forward or no backward of the model ran since `probe`.
        """
        if step != self._step:
            before = "before any probe" if self._step is None else f"after probe({self._step})"
            raise InputError(
                f"watch({step}) was called {before}. Call tracker.probe({step}) before the forward of the same step, "
                "so that the hooks for its gradients are in place."
            )
        if self._due:
            self._due = False
            with self._clock.working(same_step=True):
                self._measure_gradients(step, scale, scale if weight_scale is None else weight_scale)

    def close(self) -> None:
        """Remove all hooks and finish the run; leaving a `with` does the same."""
        if self._recorder is not None:
            self._recorder.disarm()
        if self._journal is not None:
            self._journal.update_info(tracker=self._overhead_info())
            self._journal.run.close()

    @property
    def overhead(self) -> float:
        """Time spent in the tracker, as a share of the rest of the loop's time so far."""
        return self._clock.overhead

    # --- probing --------------------------------------------------------------------------------------------------

    def _is_affordable(self) -> bool:
        """Whether one more probe fits into `max_overhead`; rank 0's clock decides for all ranks."""
        if self._max_overhead is None:
            return True
        fits = self._ranks.agree(self._clock.affords(self._max_overhead))
        self._skipped += not fits
        return fits

    def _measure_probe(self, step: int) -> None:
        """Measure the held-out tokens on rank 0; if parameters are sharded, its forward needs the other ranks."""
        if self._journal is not None or self._sharded:
            errors = self._bars_every is not None and self._probes % self._bars_every == 0
            engine = self._probe.run(errors=errors)
            self._probes += 1
            if self._journal is not None:
                self._evaluate(self._journal, engine, step, errors)
        self._agree_to_stop()

    def _evaluate(self, journal: Journal, engine: Engine, step: int, errors: bool) -> None:
        """Evaluate one probe and publish its records together when all sites are done."""
        reference_before = self._probe.reference_step
        measured: list[MetricResult] = []
        try:
            for result in self._probe.evaluated(engine, run=journal.run.name, step=step, errors=errors):
                measured += result.measured
                if self._recorder is not None and result.site.kind == "resid":
                    self._fit_bases(journal, result.site, result.clouds[default_policy(result)], step)
        except Exception as error:  # outside any metric: keep what is done, and let training continue
            if self._strict:
                raise
            reason = f"{type(error).__name__}: {error}"
            measured.append(MetricResult(Record(self._probe.sites[0], "probe", None, step=step, note=reason)))
        journal.publish([m.record for m in measured], [m.replicates or None for m in measured])
        if reference_before != self._probe.reference_step:
            journal.keep_clouds(self._probe.reference, step, "reference")
        journal.update_info(tracker=self._overhead_info())

    def _fit_bases(self, journal: Journal, site: Site, cloud: Cloud, step: int) -> None:
        """Fit the bases of a site on its held-out rows; frozen ones are stored, for a training that is restarted."""
        if self._bases.fit(site, cloud, step):
            journal.keep_clouds({str(site): Cloud({"Sample": cloud.get(Sample)})}, step, "frozen")

    # --- gradients ------------------------------------------------------------------------------------------------

    def _measure_gradients(self, step: int, scale: float, weight_scale: float) -> None:
        by_site: dict[Site, Moments | str] = {}  # the reason, if there is no gradient
        overlap = 0
        if self._recorder is not None:
            self._recorder.disarm()
            self._clock.add(self._recorder.seconds, same_step=True)  # of the hooks, inside the user's backward
            reasons = self._ranks.gather(self._why_no_gradients(self._recorder, step))
            if reasons[0] is not None and all(reasons):
                self._report_no_gradients(reasons[0], step)
                return
            self._recorder.replay()
            by_site = self._sum_over_ranks(self._recorder)
            overlap = sum(self._ranks.gather(len(self._recorder.windows & self._covered)))
            self._recorder.clear()
            self._watched += 1
        by_site |= weight_moments(self._weights)
        if self._journal is not None:
            make = partial(Record, run=self._journal.run.name, step=step)
            records: list[Record] = []
            for site, moments in by_site.items():
                hidden_scale = scale * (self._ranks.world if self._average else 1)  # each rank's loss is its own mean
                site_scale = hidden_scale if site.kind == "resid" else weight_scale
                try:
                    records += self._site_records(site, moments, overlap, site_scale, make)
                except Exception as error:
                    if self._strict:
                        raise
                    records.append(make(str(site), "gradient_norm", None, note=f"{type(error).__name__}: {error}"))
            self._journal.publish(records)
        self._agree_to_stop()

    def _why_no_gradients(self, recorder: GradientRecorder, step: int) -> str | None:
        """Return what is wrong if probe and watch do not enclose a forward and a backward of this model."""
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

    def _report_no_gradients(self, reason: str, step: int) -> None:
        """Raise at the first watched step, where misplaced calls show; later, only record it."""
        if self._strict or not self._watched:
            raise CaptureError(reason)
        if self._journal is not None:
            site = f"grad.{self._probe.sites[0]}"
            self._journal.publish([Record(site, "gradient_norm", None, step=step, note=reason)])

    def _sum_over_ranks(self, recorder: GradientRecorder) -> dict[Site, Moments | str]:
        """Return the gradients of all ranks by site, or why there are none."""
        by_site: dict[Site, Moments | str] = {}
        for site in sorted(site for site in self._layout.sites() if site.kind == "resid"):
            total = add_over_ranks(recorder.moments.get(site), Moments, self._ranks)
            by_site[replace(site, grad=True)] = recorder.reason(site) if total is None else total
        return by_site

    def _site_records(
        self, site: Site, moments: Moments | str, overlap: int, scale: float, make: Callable[..., Record]
    ) -> list[Record]:
        if isinstance(moments, str):
            return [make(str(site), "gradient_norm", None, note=moments)]
        records = gradient_records(site, moments, self._gradient_metrics, scale=scale, make=make)
        if records[0].value is None or site.kind != "resid":
            return records
        if overlap:
            note = (
                f"{overlap} windows of this batch are among the held-out tokens that the bases are fitted on, and a "
                "gradient lies in the span of its own activations by construction. Hold other tokens out."
            )
            return [*records, make(str(site), "gradient_energy", None, note=note)]
        return [*records, *alignment_records(site, moments, self._bases, make=make)]

    # --- the run --------------------------------------------------------------------------------------------------

    def _agree_to_stop(self) -> None:
        self.should_stop = self._ranks.agree(self._journal.should_stop if self._journal is not None else False)

    def _restore(self, journal: Journal) -> None:
        """Restore from the run what a restarted training needs: reference, frozen bases, number of probes, alerts."""
        for step, site, cloud in journal.kept_clouds("reference"):
            self._probe.reference[site], self._probe.reference_step = cloud, step
        for step, site, cloud in journal.kept_clouds("frozen"):
            self._bases.fit(Site.parse(site), cloud, step)
        # counts only the steps before `resume`: training may restart far before the last probe
        self._probes = journal.replay_alerts()

    def _overhead_info(self) -> dict[str, Any]:
        return {
            "probes": self._probes,
            "skipped to stay within max_overhead": self._skipped,
            "seconds": round(self._clock.spent, 3),
            "share of the loop's own time": round(self._clock.overhead, 6),
            "reference": self._probe.reference_step,
        }

    def _run_info(self, info: dict[str, Any], sample: int, seed: int) -> dict[str, Any]:
        batches = self._probe.batches
        facts = {
            "kind": "training",
            "model": {"architecture": type(self._model).__name__},
            "data": {"source": "held-out tokens", "tokens": self._probe.tokens, "windows": len(self._covered)},
            "probe": fingerprint(self._covered),
            "unit": batches[0].unit,
            "seed": seed,
            "sample": sample,
            **info,
        }
        about = run_info(facts, [*self._probe.metrics, *self._gradient_metrics])
        about["metrics"] |= gradient_cards()
        return about
