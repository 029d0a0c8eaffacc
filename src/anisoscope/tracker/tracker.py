"""The tracker in a training loop: `probe` before the forward, `watch` before the optimiser's step."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from anisoscope import schedule as schedules
from anisoscope.alerts import Rule, stability
from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.windows import covered, probe_batches
from anisoscope.distributed import is_sharded, joined_ranks, unwrapped
from anisoscope.errors import CaptureError, InputError
from anisoscope.hooks import find_layout
from anisoscope.hooks.invisible import side_effect_free
from anisoscope.measurement.engine import Engine
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record
from anisoscope.tangent import Tangent
from anisoscope.tracker.clock import OverheadClock
from anisoscope.tracker.concept_history import ConceptHistory
from anisoscope.tracker.gradient_watch import GradientWatch
from anisoscope.tracker.journal import Journal, Log, open_run
from anisoscope.tracker.loop_scalars import LOOP, LoopScalars, require_names
from anisoscope.tracker.probe import Probe
from anisoscope.tracker.probe_fits import ProbeFits
from anisoscope.tracker.roll_call import RollCall
from anisoscope.tracker.step_gradients import CLOSED_FORM, Bases
from anisoscope.tracker.training_facts import restore, training_info


class Tracker:
    """Measures a model's geometry while it trains: layers, dimension, attention, and gradients against proxies.

    Call `probe` before the forward of each step and `watch` after its backward; steps that the schedule leaves out
    cost next to nothing. Weights, optimiser state and random numbers are bit-identical with and without a tracker.

    >>> tracker = Tracker(model, probe=held_out, out="runs/exp1")           # doctest: +SKIP
    >>> for step, batch in enumerate(loader):                               # doctest: +SKIP
    ...     tracker.probe(step)
    ...     loss = model(**batch).loss
    ...     loss.backward()
    ...     tracker.watch(step, loss=loss)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> tracker.close()                                                     # doctest: +SKIP

    Args:
        model: The model that is trained. It may be wrapped by DistributedDataParallel or `torch.compile`.
        probe: A held-out batch, or a list of batches, like those the model is trained on. It is fixed, so that steps
            are compared on the same tokens. Do not train on it.
        out: The folder of the run.
        schedule: Which steps are measured: a function step -> bool, see `anisoscope.schedule`. By default steps 0, 1,
            2, 4, 8, … 256, and then every 400.
        metrics: Metrics of the held-out tokens, by name or as `Metric`. By default `anisoscope.tracker.probe.METRICS`.
        sites: Sites of the held-out tokens. By default embed, resid, pattern if the attention shows it, router, final.
        gradients: Measure d loss/d h of the training batch at every residual site.
        weights: Names of parameters whose `.grad` is measured too.
        tangent: Proxies that the gradients are compared with. By default PCA of ranks 8 and 32, with the null in
            closed form.
        total_steps: Length of the training. Gradients are then also compared with bases frozen after 30 % of it.
        concepts: Follow this many concepts of semi-NMF at every residual site over training; 0 for none.
        tokenizer: For concepts in words: has `decode`, or is a function from ids to text. None for token ids.
        reference: Drift is measured from the first probe at or after this step.
        scalars: Record loss, learning rate, gradient norm and update/weight ratio of every step.
        optimizer: The optimiser, for the learning rate. By default the first one that steps over the model's weights.
        alerts: Rules such as those of `anisoscope.alerts`. By default `alerts.stability()`; `()` for none.
        log: Functions that take a list of records, such as `anisoscope.integrations.to_wandb()`.
        bars_every: Compute error bars, which cost a jackknife, at every this many probes; None for never.
        max_overhead: Skip due steps if the tracker's time would exceed this share of the rest of the loop's time.
        average: Gradients are averaged over ranks, as DDP and FSDP do.
        rows: What a row of the held-out tokens is: `tokens`, or one per sequence: `last`, `mean` or `cls`. Gradients
            are those of tokens, so other rows need `gradients=False`.
        wait: Seconds that ranks wait for each other at a due step; then the step is skipped on all of them.
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
        total_steps: int | None = None,
        concepts: int = 0,
        tokenizer: Any = None,
        reference: int = 0,
        scalars: bool = True,
        optimizer: Optimizer | None = None,
        alerts: Sequence[Rule] | None = None,
        log: Sequence[Log] = (),
        bars_every: int | None = 10,
        max_overhead: float | None = None,
        average: bool = True,
        rows: str = "tokens",
        wait: float = 60.0,
        sample: int = 1024,
        seed: int = 0,
        resume: int | None = None,
        strict: bool = False,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        if rows != "tokens" and gradients:
            raise InputError(f"Gradients belong to tokens, not to {rows!r} rows. Pass gradients=False.")
        self.should_stop = False
        self._ranks = joined_ranks()
        self._roll_call = RollCall(self._ranks, wait)
        self._model = unwrapped(model)
        self._sharded = is_sharded(self._model)
        self._schedule = schedule or schedules.default()
        self._max_overhead, self._bars_every, self._strict = max_overhead, bars_every, strict
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
            options={"sample": sample, "seed": seed, "rows": rows},
        )
        tangent = tangent or Tangent(nulls=CLOSED_FORM)
        bases = Bases(tangent if tangent.total_steps else replace(tangent, total_steps=total_steps), seed)
        history = ConceptHistory(concepts, seed, tokenizer)
        self._fits = ProbeFits(bases, history, needs_bases=gradients, strict=strict)
        self._gradients = GradientWatch(
            self._model,
            self._layout,
            self._ranks,
            bases,
            hidden=gradients,
            weights=weights,
            average=average,
            strict=strict,
        )
        # removes the hooks even if an exception discards the tracker before `close`
        self._release = weakref.finalize(self, self._gradients.disarm)
        self._scalars = LoopScalars(self._model, self._layout, self._ranks, optimizer, seed) if scalars else None
        self._step: int | None = None  # of the last call of `probe`
        self._due = False  # whether that step is watched
        self._probes = self._watched = self._skipped = 0
        self._clock = OverheadClock()
        self._journal: Journal | None = None  # on rank 0 only
        if self._ranks.rank == 0:
            known = {"rows": rows, **({"concept_count": concepts} if concepts else {}), **(info or {})}
            about = training_info(self._probe, self._covered, self._gradients.metrics, known, sample, seed)
            rules = stability() if alerts is None else alerts
            self._journal = Journal(open_run(out, about, resume), log, rules, strict=strict)
            if resume is not None:
                self._probes = restore(self._journal, self._probe, bases, history)

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
        if self._due:
            self._gradients.disarm()  # the last step failed, or was not watched
        if self._scalars is not None:
            self._scalars.before_forward()
        self._due = self._schedule(step) and self._is_affordable(step)
        if self._due:
            with self._clock.working():
                self._measure_probe(step)
                self._gradients.arm()
        elif self._scalars is not None and self._scalars.is_full(step) and not self._scalars.together:
            self._flush_scalars(may_wait=True)

    def watch(
        self,
        step: int,
        *,
        loss: Tensor | float | None = None,
        optimizer: Optimizer | None = None,
        scale: float = 1.0,
        weight_scale: float | None = None,
    ) -> None:
        """Note the scalars of the step, and measure the true gradients of the training batch if the step is due.

        Call it after backward and before the optimiser's step.

        Args:
            step: The step that `probe` was called with.
            loss: The training loss of the step, without the loss scale. A tensor is not read before the next due step.
            optimizer: The optimiser whose learning rate is recorded, if it was not passed to the tracker.
            scale: The loss scale in the gradients, such as `scaler.get_scale()`. Norms are divided by it; all other
                metrics do not depend on it.
            weight_scale: The scale still in the weights' gradients, if it differs: 1 after `scaler.unscale_`.

        Raises:
            InputError: `probe` was not called with this step.
            CaptureError: At the first due step, if no forward or no backward of the model ran since `probe`.
        """
        if step != self._step:
            last = "before any probe" if self._step is None else f"after probe({self._step})"
            raise InputError(f"watch({step}) was called {last}. Call tracker.probe({step}) before that step's forward.")
        of_weights = scale if weight_scale is None else weight_scale
        if self._scalars is not None:
            self._scalars.after_backward(step, loss=loss, scale=of_weights, optimizer=optimizer)
        if self._due:
            self._due = False
            with self._clock.working(same_step=True):
                self._measure_gradients(step, scale, of_weights)

    def log(self, step: int, **values: Tensor | float) -> None:
        """Record numbers of your own, such as `tracker.log(step, validation_loss=loss)`, at the site `loop`.

        Args:
            step: The number of the step.
            **values: Numbers by name. Tensors are not read before the next due step.

        Raises:
            InputError: A name is no identifier, or a value is no number.
        """
        require_names(values)
        if self._scalars is not None:
            self._scalars.log(step, values)
        elif self._journal is not None:
            self._journal.publish([self._record(step, name, float(value)) for name, value in values.items()])

    def flush(self) -> None:
        """Write the scalars so far. Call it before you save a checkpoint, so that a resumed run has them all."""
        if self._scalars is not None:
            self._scalars.before_forward()
            if not self._scalars.together or self._roll_call(f"scalars {self._step}").skipped is None:
                self._flush_scalars()
        if self._journal is not None:
            self._fits.keep(self._journal)

    def close(self) -> None:
        """Remove all hooks, write the scalars that are left and finish the run; leaving a `with` does the same."""
        self._gradients.disarm()
        if self._scalars is not None:
            self._scalars.close()
        self.flush()
        if self._journal is not None:
            self._journal.update_info(tracker=self._overhead_info())
            self._journal.run.close()

    @property
    def overhead(self) -> float:
        """Time spent in the tracker, as a share of the rest of the loop's time so far."""
        return self._clock.overhead

    # --- probing --------------------------------------------------------------------------------------------------

    def _is_affordable(self, step: int) -> bool:
        """Whether one more probe fits into `max_overhead`; rank 0's clock decides for all ranks."""
        if self._max_overhead is None:
            return True
        affords = "yes" if self._clock.affords(self._max_overhead) else "no"
        fits = self._roll_call(f"schedule of step {step}", affords).message == "yes"
        self._skipped += not fits
        return fits

    def _measure_probe(self, step: int) -> None:
        """Measure the held-out tokens on rank 0; if parameters are sharded, its forward needs the other ranks."""
        if self._sharded:
            agreed = self._roll_call(f"probe {step}")
            if agreed.skipped is not None:
                self._record_skipped(step, agreed.skipped)
                return
        self._flush_scalars()
        if self._journal is not None or self._sharded:
            errors = self._bars_every is not None and self._probes % self._bars_every == 0
            engine = self._probe.run(errors=errors)
            self._probes += 1
            if self._journal is not None:
                self._evaluate(self._journal, engine, step, errors)

    def _record_skipped(self, step: int, reason: str) -> None:
        """Record that a due step was skipped on all ranks, and why."""
        if self._journal is not None:
            self._journal.publish([self._record(step, "skipped", None, reason)])

    def _record(self, step: int, metric: str, value: float | None, note: str | None = None) -> Record:
        """A record of the loop as a whole."""
        run = "" if self._journal is None else self._journal.run.name
        return Record(LOOP, metric, value, run=run, step=step, note=note)

    def _flush_scalars(self, *, may_wait: bool = False) -> None:
        if self._scalars is not None:
            name = "" if self._journal is None else self._journal.run.name
            records = self._scalars.flush(name, self._schedule)
            if self._journal is not None:
                self._journal.publish(records, may_wait=may_wait)
                self._follow_journal()

    def _follow_journal(self) -> None:
        """Stop at once if there is one process; several agree at their next due step."""
        if self._journal is not None and self._ranks.world == 1:
            self.should_stop = self._journal.should_stop

    def _evaluate(self, journal: Journal, engine: Engine, step: int, errors: bool) -> None:
        """Evaluate one probe and publish its records together when all sites are done."""
        if broken := self._probe.finite.records(step):  # no metric has a value for such rows
            journal.publish([replace(record, run=journal.run.name) for record in broken])
            self._follow_journal()
            return
        reference_before = self._probe.reference_step
        measured = self._probe.writes(journal.run.name, step)
        try:
            for result in self._probe.evaluated(engine, run=journal.run.name, step=step, errors=errors):
                measured += result.measured
                measured += self._fits.fit(journal, result, step)
        except Exception as error:  # outside any metric: keep what is done, and let training continue
            if self._strict:
                raise
            reason = f"{type(error).__name__}: {error}"
            measured.append(MetricResult(Record(self._probe.sites[0], "probe", None, step=step, note=reason)))
        journal.publish([m.record for m in measured], [m.replicates or None for m in measured])
        self._follow_journal()
        if reference_before != self._probe.reference_step:
            journal.keep_clouds(self._probe.reference, step, "reference")
        journal.update_info(tracker=self._overhead_info())

    # --- gradients ------------------------------------------------------------------------------------------------

    def _measure_gradients(self, step: int, scale: float, weight_scale: float) -> None:
        """Sum the gradients of all ranks and record them. What can fail on one rank comes before the roll call."""
        recorder = self._gradients.recorder
        reason = self._gradients.finish(step)
        if recorder is not None:
            self._clock.add(recorder.seconds, same_step=True)  # of the hooks, inside the user's backward
        stop = "stop" if self._journal is not None and self._journal.should_stop else ""
        agreed = self._roll_call(f"watch {step}", stop)
        if agreed.skipped is not None:
            self._record_skipped(step, agreed.skipped)
            return
        self.should_stop = self.should_stop or agreed.message == "stop"
        none, overlap = self._gradients.shared(reason, self._covered)
        if none and recorder is not None:
            self._report_no_gradients(reason or "", step)
            return
        by_site = self._gradients.sums()
        self._watched += 1
        if self._journal is not None:
            make = partial(Record, run=self._journal.run.name, step=step)
            facts: dict[str, Any] = {"overlap": overlap, "scale": scale, "weight_scale": weight_scale}
            self._journal.publish(self._gradients.records(by_site, make, **facts))
            self._follow_journal()

    def _report_no_gradients(self, reason: str, step: int) -> None:
        """Raise at the first watched step, where misplaced calls show; later, only record it."""
        if self._strict or not self._watched:
            raise CaptureError(reason)
        if self._journal is not None:
            first = f"grad.{self._probe.sites[0]}"
            self._journal.publish([Record(first, "gradient_norm", None, step=step, note=reason)])

    # --- the run --------------------------------------------------------------------------------------------------

    def _overhead_info(self) -> dict[str, Any]:
        return {
            "probes": self._probes,
            "skipped to stay within max_overhead": self._skipped,
            **self._clock.info(),
            "reference": self._probe.reference_step,
        }
