"""Where the tracker's records go: the run, the loggers, and the rules that raise alerts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from anisoscope.alerts import Rule
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.run_output import save_cloud
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud, from_arrays
from anisoscope.store.run import Run

Log = Callable[[list[Record]], object]  # called with records as they are written
ALERT = "alert"  # the metric of the records that rules return
_KINDS = ("loop", "probe", "gradients")  # what is published together at a step
_LAYERS = "layers of the loop"  # of which not every step has records
_OF_LOOP = ("gradient_norm", "update_ratio")  # metrics of weights by layer, published with the loop's scalars
WRITE_EVERY = 10  # steps whose scalars are written together: the disk confirms each write
_log = logging.getLogger("anisoscope")


class Journal:
    """Writes records to a run, passes them to loggers and evaluates alert rules.

    Args:
        run: The run, open for writing.
        loggers: Called with each list of records.
        rules: Called with the records of each probe, and with those of its gradients.
        strict: Raise if any of them fails; by default a warning is logged and training continues.
    """

    def __init__(self, run: Run, loggers: Sequence[Log], rules: Sequence[Rule], *, strict: bool) -> None:
        self.run = run
        self.should_stop = False
        self._loggers = loggers
        self._rules = rules
        self._strict = strict
        self._waiting: list[Record] = []  # to be written with those of the next steps
        self._last_raised: dict[tuple[Any, ...], int] = {}  # the last step at which an alert held
        self._steps: dict[str, list[int]] = {}  # the last two that were published, by kind of records

    def publish(
        self, records: Sequence[Record], replicates: Sequence[Any] | None = None, *, may_wait: bool = False
    ) -> None:
        """Write records and log them, then do the same with the alerts that they raise.

        Args:
            records: The records.
            replicates: Those of each record, or None.
            may_wait: Write the records with those of the next steps. Rules see them at once, and an alert is written
                without delay.
        """
        if may_wait:
            self._waiting += records
        else:
            self._write(records, replicates)
        alerts = [alert for _, group in groupby(records, attrgetter("step")) for alert in self._new_alerts(list(group))]
        for alert in alerts:
            _log.warning("step %d, %s: %s", alert.step, alert.site, alert.note)
            self.should_stop |= bool(alert.variant.get("stop"))
        if alerts or (self._waiting and self._waiting[-1].step - self._waiting[0].step >= WRITE_EVERY - 1):
            self._write(alerts)

    def replay_alerts(self) -> int:
        """Show the run's records to the rules again, as if training had not stopped; return the number of probes."""
        known = (record for record in self.run.records() if record.metric != ALERT)
        probes = 0
        for _, group in groupby(sorted(known, key=attrgetter("step")), key=attrgetter("step")):
            records = list(group)
            for kind in _KINDS:  # as they were published then
                published = [record for record in records if _kind_of(record) == kind]
                probes += bool(published) and kind == "probe"
                if published:
                    self._new_alerts(published)
        return probes

    def keep_clouds(self, clouds: Mapping[str, Cloud], step: int, name: str) -> None:
        """Store clouds by site in the run under a name, for a training that is restarted."""
        for site, cloud in clouds.items():
            self._guard(
                f"Storing {site}",
                partial(save_cloud, self.run, cloud, site=site, step=step, tokens=name),
            )

    def kept_clouds(self, name: str) -> Iterator[tuple[int, str, Cloud]]:
        """Yield step, site and cloud of what `keep_clouds` stored under this name."""
        for step, site, arrays in self.kept_arrays(name):
            yield step, site, Cloud(from_arrays({key: torch.from_numpy(array) for key, array in arrays.items()}))

    def keep_arrays(self, arrays: Mapping[str, Any], site: str, step: int, name: str) -> None:
        """Store numpy arrays of a site in the run under a name, for a training that is restarted."""
        self._guard(f"Storing {site}", partial(self.run.save_statistics, step, site, name, arrays))

    def kept_arrays(self, name: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield step, site and arrays of what was stored under this name, in the order of steps."""
        for step, site, tokens, _ in self.run.statistics():
            if tokens == name:
                yield step, site, self.run.load_statistics(step, site, tokens)

    def update_info(self, **info: Any) -> None:
        """Add facts to the run's `run.json`."""
        self._guard("Updating the run's info", lambda: self.run.update_info(**info))

    def _write(self, records: Sequence[Record], replicates: Sequence[Any] | None = None) -> None:
        """Write the records that wait, and these."""
        waiting, self._waiting = self._waiting, []
        together = [*waiting, *records]
        if not together:
            return
        of_each = None if replicates is None else [*(None for _ in waiting), *replicates]
        self._guard("Writing the run", lambda: self.run.append(together, of_each))
        for log in self._loggers:
            self._guard(f"The logger {log!r}", partial(log, list(together)))

    def _new_alerts(self, records: Sequence[Record]) -> list[Record]:
        """Return the alerts that these records of one step raise and that did not hold at the step before."""
        for kind in {_series_of(record) for record in records}:
            steps = self._steps.setdefault(kind, [])
            if records[0].step not in steps:
                steps[:] = [*steps[-1:], records[0].step]
        return [
            alert for rule in self._rules for alert in self._evaluate(rule, records) if self._is_new(alert, records)
        ]

    def _evaluate(self, rule: Rule, records: Sequence[Record]) -> list[Record]:
        alerts: list[Record] = []
        self._guard(f"The rule {rule!r}", lambda: alerts.extend(rule(records)))
        return alerts

    def _is_new(self, alert: Record, records: Sequence[Record]) -> bool:
        """Whether the alert did not hold when records like those that raised it were published before."""
        layers = alert.site != "loop" and any(_series_of(record) == _LAYERS for record in records)
        series = _LAYERS if layers else _kind_of(records[0])
        key = (alert.site, alert.index, alert.variant.get("rule"), series)
        before, self._last_raised[key] = self._last_raised.get(key), alert.step
        return before not in self._steps.get(series, ())

    def _guard(self, what: str, action: Callable[[], object]) -> None:
        """Run an action; unless `strict`, its failure is only logged."""
        try:
            action()
        except Exception as error:
            if self._strict:
                raise
            _log.warning("%s failed, training continues: %s: %s", what, type(error).__name__, error)


def open_run(out: str | Path, info: Mapping[str, Any], resume: int | None) -> Run:
    """Create a run, or reopen an existing one and discard its records from the step `resume` on.

    Raises:
        StoreError: The run exists and `resume` is None.
        InputError: The run was measured on another probe.
    """
    if resume is None and (Path(out) / "run.json").exists():  # a killed process may leave a folder without a run
        raise StoreError(
            f"{out} holds a run already. Choose another folder, or pass resume=step, the step training restarts at."
        )
    run = Run.create(out, info, resume=resume is not None)
    if run.info.get("probe") != info.get("probe"):
        run.close()
        raise InputError(
            f"{out} was measured on other held-out tokens, so its steps cannot be compared with new ones. Pass the "
            "same probe, or another folder."
        )
    if resume is not None:
        run.rewind(resume)
    return run


def _kind_of(record: Record) -> str:
    """Whether a record belongs to the loop's scalars, to the held-out tokens or to the gradients of a due step."""
    if record.site.startswith("grad."):
        return "gradients"
    return "loop" if record.site == "loop" or record.metric in _OF_LOOP else "probe"


def _series_of(record: Record) -> str:
    """The kind of a record, with the layers of the loop's scalars as a series of their own."""
    kind = _kind_of(record)
    return _LAYERS if kind == "loop" and record.site != "loop" else kind
