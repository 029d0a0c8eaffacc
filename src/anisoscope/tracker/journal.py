"""Where records go: the run's folder, the loggers, the rules that raise alerts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.run_output import save_cloud
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud, from_arrays
from anisoscope.store.run import Run

Log = Callable[[list[Record]], object]
Rule = Callable[[Sequence[Record]], Iterable[Record]]
ALERT = "alert"  # the metric of a record that a rule gives back
_log = logging.getLogger("anisoscope")


class Journal:
    """Writes a run, tells the loggers and asks the rules. Without `strict` none of them can end a training."""

    def __init__(self, run: Run, loggers: Sequence[Log], rules: Sequence[Rule], *, strict: bool) -> None:
        self.run = run
        self.should_stop = False
        self._loggers = loggers
        self._rules = rules
        self._strict = strict
        self._told: dict[tuple[Any, ...], int] = {}  # alerts, and the step at which they last held
        self._steps: list[int] = []  # the last two that were published

    def publish(self, records: Sequence[Record], replicates: Sequence[Any] | None = None) -> None:
        """Write records, hand them to the loggers, and do the same with the alerts that they raise."""
        if not records:
            return
        self._write(records, replicates)
        alerts = self._alerts(records)
        for alert in alerts:
            _log.warning("step %d, %s: %s", alert.step, alert.site, alert.note)
            self.should_stop |= bool(alert.variant.get("stop"))
        if alerts:
            self._write(alerts, None)

    def catch_up(self) -> int:
        """Let the rules see what the run already holds, as they saw it then; how many steps were probed."""
        known = (record for record in self.run.records() if record.metric != ALERT)
        probes = 0
        for _, records in groupby(sorted(known, key=attrgetter("step")), key=attrgetter("step")):
            looks: tuple[list[Record], list[Record]] = ([], [])  # of the held-out tokens, and of the gradients after
            for record in records:
                looks[record.site.startswith("grad.")].append(record)
            probes += bool(looks[0])
            for look in filter(None, looks):
                self._alerts(look)
        return probes

    def keep(self, clouds: Mapping[str, Cloud], step: int, name: str) -> None:
        """Put clouds by site into the run under a name, for a training that starts again."""
        for site, cloud in clouds.items():
            self._carefully(
                f"keeping {site}",
                partial(save_cloud, self.run, cloud, site=site, step=step, tokens=name),
            )

    def kept(self, name: str) -> Iterator[tuple[int, str, Cloud]]:
        """Step, site and cloud of what the run keeps under this name."""
        for step, site, tokens, _ in self.run.statistics():
            if tokens == name:
                arrays = self.run.load_statistics(step, site, tokens)
                yield step, site, Cloud(from_arrays({at: torch.from_numpy(array) for at, array in arrays.items()}))

    def tell(self, **info: Any) -> None:
        """Facts for the run's own card."""
        self._carefully("the run's info", lambda: self.run.update_info(**info))

    def _write(self, records: Sequence[Record], replicates: Sequence[Any] | None) -> None:
        self._carefully("the run", lambda: self.run.append(records, replicates))
        for log in self._loggers:
            self._carefully(f"the logger {log!r}", partial(log, list(records)))

    def _alerts(self, records: Sequence[Record]) -> list[Record]:
        """What the rules say of one look that they did not say of the look before."""
        step = records[0].step
        if step not in self._steps:
            self._steps = [*self._steps[-1:], step]
        return [alert for rule in self._rules for alert in self._ask(rule, records) if self._is_new(alert)]

    def _ask(self, rule: Rule, records: Sequence[Record]) -> list[Record]:
        found: list[Record] = []
        self._carefully(f"the rule {rule!r}", lambda: found.extend(rule(records)))
        return found

    def _is_new(self, alert: Record) -> bool:
        """Whether it did not hold at the step before: one that goes on is not repeated."""
        key = (alert.site, alert.index, *sorted((k, str(v)) for k, v in alert.variant.items()))
        before, self._told[key] = self._told.get(key), alert.step
        return before not in self._steps

    def _carefully(self, what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:
            if self._strict:
                raise
            _log.warning("%s failed, training goes on: %s: %s", what, type(error).__name__, error)


def open_run(out: str | Path, info: Mapping[str, Any], resume: int | None) -> Run:
    """A new run, or the one that is there, without what it holds from the step on at which training starts again."""
    if resume is None and (Path(out) / "run.json").exists():  # what a kill left before that is no run yet
        raise StoreError(
            f"{out} exists already; choose another folder, or pass resume=step, the step training starts again at"
        )
    run = Run.create(out, info, resume=resume is not None)
    if run.info.get("probe") != info.get("probe"):
        run.close()
        raise InputError(
            f"{out} was measured on other held-out tokens, with which these steps cannot be compared; give the same "
            "probe, or another folder"
        )
    if resume is not None:
        run.rewind(resume)
    return run
