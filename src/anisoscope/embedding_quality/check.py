"""Check embeddings: the function `embeddings`, which the command of that name calls."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor

from anisoscope.data.vectors import Vectors
from anisoscope.embedding_quality.check_steps import FEWEST_ROWS, EmbeddingCheck, OnStage, Stages
from anisoscope.embedding_quality.corpus import OnProgress, as_vectors, read_corpus
from anisoscope.embedding_quality.label_separation import read_labels
from anisoscope.embedding_quality.mapped_sample import METRICS
from anisoscope.embedding_quality.quality_cards import quality_cards
from anisoscope.embedding_quality.retrieval import read_relevant
from anisoscope.errors import InputError, unknown
from anisoscope.measurement.run_output import open_run, run_info
from anisoscope.metrics import find
from anisoscope.report.embedding_advice import advice
from anisoscope.store.run import Run

SAMPLE = 16384
SEARCHES = ("cosine", "dot")


def embeddings(
    rows: Any,
    *,
    queries: Any = None,
    relevant: Any = None,
    labels: Any = None,
    search: str = "cosine",
    documents: Any = None,
    tensor: str | None = None,
    column: str | None = None,
    remove_top: int | None = None,
    sample: int = SAMPLE,
    all_pairs: bool | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    command: str | None = None,
    progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
) -> Run:
    """Check embeddings: duplicates, norms, cone, hubs and dimension, and what each remedy changes.

    Remedies are none, centring, all-but-the-top and whitening. They are fitted on all rows and applied to rows and
    queries. Rows are compared by cosine; queries find rows by cosine or by dot product. Files may be larger than
    memory: each remedy reads the file once if there are queries, and searches it exactly (queries × rows × width
    products). Numbers without queries use a sample of rows.

    Args:
        rows: Embeddings (n, d): an array, a tensor, a DataFrame, the path of a file, or what `open_vectors` returned.
        queries: Embeddings of queries, likewise.
        relevant: Which rows answer which queries: pairs (query, row[, grade]) counted from 0, as an array or a .csv.
        labels: One label per row: a sequence, or a .csv or .npy file.
        search: How queries find rows: by "cosine", or by "dot" product of rows and queries as stored (an index of
            inner products). All numbers without queries are by cosine.
        documents: A document number for each row (or the name of the array in the file), for error bars.
        tensor: Which tensor of the file to use.
        column: Which column of a parquet file to use.
        remove_top: Directions that all-but-the-top removes. Default: a hundredth of the width, at least one.
        sample: Rows whose neighbours are searched. With at most that many rows, all rows count.
        all_pairs: Search near duplicates of all rows, however long it takes; False: of sampled rows only. Default:
            of all rows if that takes at most 2·10¹² products.
        seed: Seed of the sample and of the nulls.
        out: Run folder to write. Default: a temporary one.
        overwrite: Replace a run in that folder.
        command: The command line, for the run's own record.
        progress: Called with the number of rows since the last call.
        on_stage: Called with what is being done, and how many rows it reads.

    Returns:
        A run. Its records have the variant `remedy`; `change` is the paired difference from no remedy. The lists of
        duplicates and hubs, the histogram of cosines and the advice are in `run.info["embeddings"]`.

    Raises:
        InputError: The files do not fit together, rows hold NaN, or there are too few rows.
        StoreError: `out` holds a run of another request.

    Example:
        >>> import torch
        >>> run = embeddings(torch.randn(300, 8, generator=torch.Generator().manual_seed(0)))
        >>> {record.metric for record in run.records()} >= {"hubness", "uniformity", "exact_duplicates"}
        True
    """
    by_name = documents if isinstance(documents, str) else None
    vectors = as_vectors(rows, tensor=tensor, column=column, documents=by_name)
    query_vectors = None if queries is None else as_vectors(queries, "queries")
    _require_inputs(vectors, query_vectors, relevant, sample)
    _require_search(search, query_vectors)
    truth = None if query_vectors is None else read_relevant(relevant, query_vectors.n, vectors.n)
    groups = None if labels is None else read_labels(labels, vectors.n)
    own = {"remove_top": remove_top, "sample": sample, "all_pairs": all_pairs, "seed": seed, "search": search}
    facts = {
        "kind": "embeddings",
        "data": vectors.info,
        "unit": "rows" if vectors.documents is None and documents is None else "documents",
        "queries": None if query_vectors is None else query_vectors.info,
        "seed": seed,
        "complete": False,
        "settings": {
            "data": vectors.info,
            "queries": None if query_vectors is None else query_vectors.info,
            "relevant": None if truth is None else _digest(truth.query, truth.row, truth.grade),
            "labels": None if groups is None else _digest(groups[0]),
            **own,
        },
    }
    info = run_info(facts, find(METRICS))
    info["metrics"] |= quality_cards()
    is_file = all(isinstance(each, str | Path | Vectors) for each in (rows, queries) if each is not None)
    with open_run(out, info, command=command, overwrite=overwrite, resumable=is_file) as run:
        if run.info["complete"]:
            return run
        if not run.is_empty:
            run.rewind(0)
        stages = Stages(progress, on_stage)
        stages.begin("reading", vectors.n)
        known = None if isinstance(documents, str) else documents
        corpus = read_corpus(vectors, known, sample, seed, progress)
        check = EmbeddingCheck(corpus, query_vectors, truth, groups, stages, seed, all_pairs, search == "dot")
        check.measure(remove_top)
        run.append(check.out.records)
        run.update_info(embeddings={**check.details, "advice": advice(check.out.records)}, complete=True)
        return run


def _require_search(search: str, queries: Vectors | None) -> None:
    if search not in SEARCHES:
        raise unknown("search", search, SEARCHES)
    if search == "dot" and queries is None:
        raise InputError("Search by dot product is tested with queries. Give --queries and --relevant.")


def _digest(*tensors: Tensor) -> str:
    """SHA-256 of pairs or labels, so that a run of other ones is not resumed."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _require_inputs(vectors: Vectors, queries: Vectors | None, relevant: Any, sample: int) -> None:
    if vectors.n < FEWEST_ROWS:
        raise InputError(f"{vectors.name} has {vectors.n} rows. At least {FEWEST_ROWS} are needed.")
    if sample < FEWEST_ROWS:
        raise InputError(f"A sample of {sample} rows is too small. Use at least {FEWEST_ROWS}.")
    if (queries is None) != (relevant is None):
        missing, present = ("queries", "relevant") if queries is None else ("relevant", "queries")
        raise InputError(f"--{present} needs --{missing}: retrieval is tested with queries and their relevant rows.")
    if queries is not None and queries.d != vectors.d:
        raise InputError(
            f"Queries have {queries.d:,} numbers, rows {vectors.d:,}. Use embeddings of the same model for both."
        )
