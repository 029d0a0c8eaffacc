"""Run: one folder of results (run.json, records.jsonl, replicates.jsonl, stats/). Append-only; torch is not needed.

Three promises hold at any moment, also after a kill -9 or on a full disk: records that `append` has returned for are
on the disk, a half-written line is never read, and at most one process writes. Readers need no lock and never write.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import InputError, StoreError
from anisoscope.records import Record, Replicates, Site
from anisoscope.store.columns import KEY, Columns, Key, RecordTable
from anisoscope.store.export import export
from anisoscope.store.files import WriterLock, append_lines, file_errors, sweep_temporaries
from anisoscope.store.record_lines import (
    read_records,
    read_replicates,
    record_values,
    replicate_line,
    require_storable,
    to_line,
    to_rows,
)
from anisoscope.store.run_header import (
    LOCK,
    checked_name,
    new_header,
    read_header,
    require_usable_folder,
    resumed_header,
    run_path,
    write_header,
)
from anisoscope.store.statistics_files import (
    Address,
    load_arrays,
    remove_from_step,
    save_arrays,
    statistics_path,
    stored_addresses,
)

if TYPE_CHECKING:
    import pandas as pd

    from anisoscope.store.statistics_files import Arrays

_RECORDS, _REPLICATES, _STATS = "records.jsonl", "replicates.jsonl", "stats"


class Run:
    """A folder with what was measured, on what, and with which versions. It can be read while it is being written.

    >>> with Run.create("runs/exp1", info={"model": "gpt2"}) as run:    # doctest: +SKIP
    ...     run.append([Record("resid.0", "isoscore", 0.31, n=8192)])
    >>> [record.value for record in Run.open("runs/exp1").records()]    # doctest: +SKIP
    [0.31]
    """

    def __init__(self, path: Path, header: dict[str, Any], lock: WriterLock | None = None) -> None:
        """Use `Run.create` or `Run.open`; `lock` is the held lock of a writer, None for a reader."""
        self.path = path
        self._header = header
        self._writer = None if lock is None else os.getpid()
        # A finalizer runs once, by `close` or because a notebook forgot the run, so the lock cannot leak.
        self._release = None if lock is None else weakref.finalize(self, lock.release)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        info: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        command: str | None = None,
        resume: bool = False,
    ) -> Run:
        """Create a run that this process may write.

        Args:
            path: The folder. It must be empty or missing, unless the run is resumed.
            info: What was measured: model, data, token policy, versions, `metrics` (the metric cards by name).
            name: The run's name; the folder's name if None.
            command: The command line that made the run.
            resume: Continue an existing run. Its stored info stays, and keys that it lacks are added: compare
                `run.info` with your request before you append.

        Raises:
            StoreError: The folder is in use, is another process's run, or cannot be written.
        """
        folder = run_path(path)
        header = new_header(checked_name(folder.name if name is None else name), command, dict(info or {}))
        with file_errors("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
            require_usable_folder(folder, resume)
            lock = WriterLock(folder / LOCK)
        try:
            # Checked again under the lock: another process may have created the run in the meantime.
            require_usable_folder(folder, resume)
            sweep_temporaries(folder)
            return cls(folder, write_header(folder, resumed_header(folder, header)), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """Open an existing run for reading; this works on read-only disks and while another process writes."""
        folder = run_path(path)
        return cls(folder, read_header(folder))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock: another process may write now. Reading still works."""
        self._writer = None
        if self._release is not None:
            self._release()

    @property
    def name(self) -> str:
        """The run's name: that of its folder unless another was chosen."""
        return str(self._header["name"])

    @property
    def created(self) -> str:
        """When the run was created: ISO text in UTC."""
        return str(self._header["created"])

    @property
    def command(self) -> str | None:
        """The command line that made the run, if there was one."""
        command: str | None = self._header["command"]
        return command

    @property
    def info(self) -> dict[str, Any]:
        """What was measured. This is a copy: change it with `update_info`."""
        return copy.deepcopy(dict(self._header["info"]))

    def update_info(self, **changes: Any) -> None:
        """Set keys of the info; if the old and the new value are both dicts, they are merged.

        >>> run.update_info(metrics={"isoscore": {"low": 0, "high": 1}})    # doctest: +SKIP
        """
        self._require_writer()
        info = self.info
        for key, new in changes.items():
            old = info.get(key)
            info[key] = {**old, **new} if isinstance(old, dict) and isinstance(new, Mapping) else new
        self._header = write_header(self.path, {**self._header, "info": info})

    def append(self, records: Iterable[Record], replicates: Sequence[Sequence[float] | None] | None = None) -> None:
        """Add records. They are on the disk when this returns.

        A record without a run name gets this run's name. A record of the same step, site, metric, version, tokens,
        index and variant supersedes the earlier one.

        Args:
            records: The records.
            replicates: For each record the metric's leave-one-block-out values, or None. `Replicates` also store the
                sizes of the blocks.

        Raises:
            InputError: A record could not be read again (not finite, not JSON); nothing is stored then.
            StoreError: The disk refuses, or the run is open for reading only.
        """
        self._require_writer()
        values = [record_values(record, self.name) for record in records]
        require_storable(values)
        lines = [to_line(value) for value in values]
        if replicates is not None:
            if len(replicates) != len(values):
                raise InputError(
                    f"{len(replicates)} replicates for {len(values)} records; pass one, or None, per record"
                )
            pairs = zip(values, replicates, strict=True)
            # Replicates first: a record that is stored when the process is killed then has its replicates too.
            self._append(
                _REPLICATES, [replicate_line(value, numbers) for value, numbers in pairs if numbers is not None]
            )
        self._append(_RECORDS, lines)

    def rewind(self, step: int) -> None:
        """Discard everything from `step` on, for a training that restarts from a checkpoint and measures again."""
        self._require_writer()
        if type(step) is not int:
            raise InputError(f"the step to rewind to must be a whole number, got {step!r}")
        # Statistics first: after a kill in between, records without statistics are harmless, the reverse is not.
        remove_from_step(self.path / _STATS, step)
        self._append(_RECORDS, [to_line({"rewind": step})])

    def records(self) -> list[Record]:
        """The records in first-seen order, the last one of each key, without rewound and half-written ones."""
        return list(self)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records, as `records` returns them."""
        yield from self._table().records()

    def __repr__(self) -> str:
        table = self._table()
        metrics, sites = len(table.distinct("metric")), len(table.distinct("site"))
        counts = ((table.rows, "record"), (metrics, "metric"), (sites, "site"))
        records, of_metrics, at_sites = (f"{count:,} {name}{'s' * (count != 1)}" for count, name in counts)
        return f"<Run {self.name}: {records}, {of_metrics} at {at_sites}>"

    def _repr_html_(self) -> str:
        return _views().html(self)

    def replicates(self) -> dict[Key, Replicates]:
        """Leave-one-block-out values by `record_key`, for comparing two runs in pairs.

        A line counts only if its record has the value that it repeats, so superseded and rewound ones are left out.
        """
        if not os.path.lexists(self.path / _REPLICATES):
            return {}
        table = self._table()
        values = dict(zip(table.keys(), table.column("value"), strict=True))
        results: dict[Key, Replicates] = {}
        for lines in read_replicates(self.path / _REPLICATES):
            results |= {key: numbers for key, value, numbers in lines if values.get(key) == value}
        return results

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever appended."""
        path = self.path / _RECORDS
        with file_errors("read", path):
            return not path.exists() or not path.stat().st_size

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics that have records, in first-seen order, each with its card ({} if the run has none)."""
        cards = self.info.get("metrics")
        known = cards if isinstance(cards, dict) else {}
        return {name: known.get(name, {}) for name in self._table().distinct("metric")}

    def sites(self) -> list[str]:
        """The sites that have records, in the order of a forward pass."""
        return [str(site) for site in sorted(map(Site.parse, self._table().distinct("site")))]

    def table(self) -> pd.DataFrame:
        """The records as they are stored, with the columns of `records.COLUMNS`; the variant is JSON text."""
        return self._table().frame()

    def frame(self) -> pd.DataFrame:
        """The records as a tidy table, one row per number.

        Returns:
            The columns of `table`, and what follows from them: `stream` (resid, attn, …), `kind`, `layer` (embed is −1,
            `final` comes after the last layer), `depth` (0 at embed, 1 at the last layer and behind it), `head`, and
            the ends `low` and `high` of the 95 % interval.
        """
        return _views().tidy(self)

    def profile(
        self, metric: str, *, step: int | None = None, stream: str | None = None, **variant: Any
    ) -> pd.DataFrame:
        """One metric over layers.

        Args:
            metric: The metric's name.
            step: The training step. Default: the last.
            stream: Which curve: `resid`, `attn`, `grad.resid`, … Default: the first that was recorded.
            **variant: The variant of the number. Default: the one that represents the metric.

        Returns:
            A table with one row per layer (−1 is embed) and the columns `all` and `no-sink`, as far as they were
            measured, and `low`, `high` and `null` of the last of these.

        >>> run.profile("isoscore")[["all", "no-sink"]].plot()    # doctest: +SKIP
        """
        return _views().profile(self, metric, step=step, stream=stream, variant=variant)

    def since(self, position: int = 0) -> tuple[pd.DataFrame | None, int]:
        """The records that were added after a position, and the position after them; to follow a growing run.

        Args:
            position: 0, or what an earlier call returned.

        Returns:
            A table like `frame`, or None if the run was rewound or started again since: then read it whole.
        """
        path, columns = self.path / _RECORDS, Columns()
        end = read_records(path, columns, position)
        if position and (not path.exists() or path.stat().st_size < position):
            return None, 0
        return None if columns.rewound else columns.table().frame(), end

    def plot(
        self, metric: str | None = None, *, kind: str | None = None, colour: str | None = None, **pick: Any
    ) -> Any:
        """Draw a chart of one metric, chosen by the shape of its records; a notebook shows it.

        Args:
            metric: The metric's name. Default: the chart at the top of the run's report.
            kind: Another kind of chart that fits.
            colour: The field to colour by.
            pick: Values of fields that are not drawn, such as `step=1000`.

        >>> run.plot("two_nn")                                           # doctest: +SKIP
        >>> run.plot("two_nn", kind="steps", tokens="no-sink").save("fig.pdf")    # doctest: +SKIP
        """
        return _views().plot(self, metric, kind=kind, colour=colour, pick=pick)

    def show(self, *, full: bool = False) -> None:
        """Print the run in sentences, a short table and caveats, as `anisoscope show` does.

        Args:
            full: Print every number.
        """
        _views().show(self, full=full)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as one .html page; see `anisoscope.report`."""
        return _views().write_report(self, Path(path))

    def compare(self, other: Run, metrics: Sequence[str] | None = None) -> pd.DataFrame:
        """Compare with another run: a table of differences, other minus this; see `anisoscope.compare`."""
        return _views().compare(self, other, metrics)

    def save(self, path: str | os.PathLike[str]) -> Run:
        """Copy records, replicates, statistics and info to a new folder; a temporary run is kept this way.

        Args:
            path: The folder, empty or missing. Its name becomes the run's name.

        Returns:
            The new run.
        """
        records, replicates = self.records(), self.replicates()
        with Run.create(path, self.info, command=self.command) as run:
            run.append([replace(r, run="") for r in records], [replicates.get(record_key(r)) for r in records])
            for step, site, tokens, block in self.statistics():
                run.save_statistics(step, site, tokens, self.load_statistics(step, site, tokens, block), block)
        return run

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the records to one file: .parquet (with run.json in its schema metadata), .csv or .jsonl."""
        return export(self, self._header, path, (_RECORDS, _REPLICATES))

    def save_statistics(self, step: int, site: str, tokens: str, arrays: Arrays, block: int | None = None) -> None:
        """Store the numpy arrays of a statistic; arrays that are already stored for this address are replaced."""
        self._require_writer()
        save_arrays(statistics_path(self.path / _STATS, step, site, tokens, block), arrays)

    def load_statistics(self, step: int, site: str, tokens: str, block: int | None = None) -> dict[str, Any]:
        """The numpy arrays that `save_statistics` stored for this address."""
        address = f"step {step}, site {site}, tokens {tokens}" + ("" if block is None else f", block {block}")
        missing = f"run {self.name} has no statistics of {address}; measure with --out to store them"
        return load_arrays(statistics_path(self.path / _STATS, step, site, tokens, block), missing)

    def statistics(self) -> list[Address]:
        """The addresses (step, site, tokens, block) of all stored statistics, by step, then by site."""
        return stored_addresses(self.path / _STATS)

    def _table(self) -> RecordTable:
        columns = Columns()
        read_records(self.path / _RECORDS, columns)
        return columns.table()

    def _require_writer(self) -> None:
        if self._writer is None:
            raise StoreError(f"run {self.name} is open for reading; write with Run.create(path, resume=True)")
        if self._writer != os.getpid():
            # A forked worker inherits the open lock; its lines would mix with its parent's.
            raise StoreError(f"run {self.name} is written by process {self._writer}; write from there, not from a fork")

    def _append(self, name: str, lines: Sequence[bytes]) -> None:
        if lines:
            with file_errors("append to", self.path / name):
                append_lines(self.path / name, b"".join(lines))


def _views() -> Any:
    """The report, imported when it is needed: drawing belongs to it, the call to the run."""
    import anisoscope.report.views as views

    return views


def record_key(record: Record) -> Key:
    """What makes two records the same measurement: (step, site, metric, version, tokens, index, variant as text).

    >>> record_key(Record("embed", "gride", 9.1, index=2, variant={"neighbours": "other"}))
    (0, 'embed', 'gride', 1, 'all', 2, '{"neighbours":"other"}')
    """
    [row] = to_rows([record.to_json()])
    return row[KEY]
