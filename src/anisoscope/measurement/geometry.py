"""`Geometry`: metrics of rows that arrive in batches, in constant memory. States of several workers add up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from anisoscope.distributed import host_ranks, joined_ranks
from anisoscope.errors import InputError
from anisoscope.measurement.request import VECTOR_SAMPLE, differences
from anisoscope.measurement.row_engine import RowEngine, RowOptions
from anisoscope.measurement.row_stream import flat_rows
from anisoscope.measurement.run_output import choose_metrics, open_run, run_info, save_cloud
from anisoscope.metrics.evaluate import records_and_replicates
from anisoscope.metrics.metric import Metric
from anisoscope.stats.collector import Part
from anisoscope.store.run import Run

State = tuple[dict[str, Any], tuple[int, ...], dict[str, Any], Part | None]  # options, workers, stream, statistics


class Geometry:
    """Metrics of rows that arrive in batches: `update` with each batch, then `compute`.

    Memory does not grow with the number of rows, except for some 60 bytes per document if documents are given. For
    the same rows, and with `expected` set to their number, results equal those of `measure_rows` to the bit, whatever
    the batches. The exceptions are `mean_cosine_centred` and `partition_isotropy`, which need the rows twice: here they
    come from the keyed sample.

    Args:
        metrics: Metrics by name. Default: all that the rows allow.
        sample: Rows kept for metrics that need rows, such as neighbours. Default: 8,192.
        seed: Seed of the sample.
        errors: Error bars, by a jackknife over blocks of documents.
        precise: Multiply rows in float64 throughout.
        expected: Number of rows that will come, if known. Blocks are sized by it.
        worker: Number of this worker. Workers whose states are added need different numbers. Default: the rank in
            `torch.distributed`, or 0.

    Raises:
        InputError: A metric does not exist.
        MetricError: A metric needs tokens or heads, which rows do not have.

    Example:
        >>> geometry = Geometry(["mean_cosine"], errors=False)
        >>> for batch in ([[1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]):
        ...     geometry.update(batch)
        >>> [round(record.value, 3) for record in geometry.compute().records()]
        [0.471]
    """

    def __init__(
        self,
        metrics: Sequence[str | Metric] | None = None,
        *,
        sample: int | None = None,
        seed: int = 0,
        errors: bool = True,
        precise: bool = False,
        expected: int | None = None,
        worker: int | None = None,
    ) -> None:
        if metrics is not None:
            metrics = choose_metrics(metrics, {"documents"})
        number = joined_ranks().rank if worker is None else worker
        self._options = RowOptions(metrics, sample or VECTOR_SAMPLE, seed, errors, precise, expected, number)
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._engine = RowEngine(self._options)
        self._merged: tuple[int, ...] = ()  # the workers that this is the sum of; none if it is one worker's

    @property
    def n(self) -> int:
        """Number of rows so far."""
        return self._engine.stream.rows

    @property
    def errors(self) -> bool:
        """Whether error bars are computed."""
        return self._options.errors

    def __repr__(self) -> str:
        return f"Geometry({self.n:,} rows)"

    def update(self, rows: Any, *, mask: Any = None, documents: Any = None) -> None:
        """Add rows.

        Args:
            rows: Rows (n, d) or (batch, time, d): a tensor on any device, an array, a DataFrame or nested lists. Every
                sequence of a batch counts as one document, unless `documents` is given.
            mask: Which rows count, (n,) or (batch, time): true or 1 for those that do.
            documents: A document number for each row, or for each sequence. Rows of one document must follow each
                other, over the batches, too: error bars leave out whole documents.

        Raises:
            InputError: The shapes do not match each other or those of earlier batches, or a document continues after
                another one came in between.
        """
        if self._merged:
            raise InputError("This is the sum of several workers. Update the workers, and add them again.")
        x, document = flat_rows(rows, mask, documents, self._engine.stream.next_sequence)
        if len(x):
            self._engine.add(x, document)

    def compute(self, out: str | Path | None = None, *, overwrite: bool = False) -> Run:
        """Evaluate the metrics of all rows so far. More rows can be added afterwards.

        Args:
            out: Run folder to write. Default: a temporary run, which is deleted with the returned object.
            overwrite: Replace a run in that folder.

        Returns:
            A run with one record per number: value, error, null value, n.

        Raises:
            InputError: There are no rows yet.
            StoreError: The folder holds a run already.
        """
        engine, options = self._engine, self._options
        cloud = engine.cloud()
        known = {"kind": "vectors", "data": {"rows": self.n}, "unit": engine.stream.unit, "seed": options.seed}
        settings = {name: value for name, value in options.plain().items() if name != "worker"}
        facts = {**known, "sample": options.sample, "complete": False, "settings": settings}
        with open_run(out, run_info(facts, engine.metrics), overwrite=overwrite, resumable=False) as run:
            measured = engine.results(cloud, site="vectors", run=run.name)
            if out is not None:
                save_cloud(run, cloud, site="vectors")
            run.append(*records_and_replicates(measured))
            run.update_info(complete=True)
        return run

    def __add__(self, other: Geometry) -> Geometry:
        """Return the geometry of the rows of both. Neither is changed.

        Raises:
            InputError: The two were made with different options or the same worker number, or share a document.
        """
        if not isinstance(other, Geometry):
            return NotImplemented
        return self._sum([self._state_of_worker(), other._state_of_worker()])

    def across_ranks(self) -> Geometry:
        """Return the geometry of the rows of all ranks of `torch.distributed`, equal on all of them.

        All ranks must call it together; a rank may have no rows. A single process gets its own rows.
        """
        return self._sum(host_ranks().gather(self._state_of_worker()))

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors, numbers and texts, for `torch.save`. After loading, results are equal."""
        if self._merged:
            raise InputError("This is the sum of several workers. Save the states of the workers.")
        stream, collector = self._engine.stream, self._engine.collector
        state: dict[str, Any] = {"settings": self._options.plain(), "stream": stream.state(), "collector": None}
        if collector is not None:
            with tempfile.TemporaryDirectory(prefix="anisoscope-") as folder:
                collector.save(Path(folder) / "state")
                files = sorted((Path(folder) / "state").iterdir())
                arrays = {path.name: load_file(path) for path in files if path.suffix == ".safetensors"}
                state["collector"] = {"arrays": arrays, "json": (Path(folder) / "state" / "state.json").read_text()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned for a geometry with the same options.

        Raises:
            InputError: The options differ; the message names them.
        """
        ours, theirs = self._options.plain(), state["settings"]
        if ours != theirs:
            different = "; ".join(differences(theirs, ours))
            raise InputError(f"The state is of another Geometry (different: {different}). Use the same options.")
        self.reset()
        self._engine.stream.load(state["stream"])
        if state["collector"] is not None:
            self._engine.collector = collector = self._engine.new_collector()
            with tempfile.TemporaryDirectory(prefix="anisoscope-") as folder:
                for name, arrays in state["collector"]["arrays"].items():
                    save_file(arrays, Path(folder) / name)
                (Path(folder) / "state.json").write_text(state["collector"]["json"])
                collector.load(Path(folder))

    def _state_of_worker(self) -> State:
        """What adding needs: options, workers, what the stream has seen, and the statistics."""
        part = self._engine.whole().part() if self.n else None
        return self._options.plain(), self._merged or (self._options.worker,), self._engine.stream.seen(), part

    def _sum(self, states: Iterable[State]) -> Geometry:
        total, ours = Geometry(**vars(self._options)), self._options.plain()
        for settings, workers, seen, part in states:
            theirs = {**settings, "worker": ours["worker"], "expected": ours["expected"]}  # these may differ
            if theirs != ours:
                different = "; ".join(differences(theirs, ours))
                raise InputError(f"These geometries have different options ({different}). Use the same.")
            twice = set(total._merged) & set(workers)
            if twice:
                raise InputError(
                    f"Both were collected as worker {min(twice)}, so their rows cannot be told apart. "
                    "Give each its own number: Geometry(..., worker=1)."
                )
            total._merged += workers
            if part is not None:
                total._engine.absorb(seen, part)
        return total
