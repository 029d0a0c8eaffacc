"""Similarity of two models: all pairs of layers, on the same documents or words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.batches import window_length
from anisoscope.data.shared_documents import (
    SharedDocuments,
    TextReader,
    shared_documents,
    text_reader,
    word_spans,
    word_tokens,
)
from anisoscope.data.text_sources import text_documents
from anisoscope.errors import InputError, unknown
from anisoscope.measurement.layer_rows import ROW_KINDS, LayerRows, RowChoice, layer_rows
from anisoscope.measurement.request import ModelOptions, Request, accepts, names_of, plain
from anisoscope.measurement.run_output import open_run, run_info
from anisoscope.measurement.similarity_records import (
    FEWEST_BLOCKS,
    ComparedRows,
    p_records,
    similarity_cards,
    similarity_records,
)
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models.open import Opened, open_model, opened_module
from anisoscope.stats.layer_permutations import permutation_tests
from anisoscope.stats.layer_similarity import NEIGHBOURS, layer_similarity
from anisoscope.store.run import Run

ROWS = 1024  # compared by default: a few minutes on a CPU for models of 100 million parameters
DRAWS = 199  # permutations: the smallest p-value is 1/200
BLOCKS = 32  # of documents, for error bars
_PERMUTED = 1024  # rows that are permuted at most: kernels and ranks of all layers must fit in memory
_FEWEST_WORDS = 8  # words per document at least, so that rows come from many documents
SIMILARITY_OPTIONS = (
    *("text", "window", "batch", "field", "document_mark", "sites", "seed"),
    *(name for name in names_of(ModelOptions) if name != "tensor_parallel"),
    *("out", "overwrite"),
)
OnProgress = Callable[[int], None]  # called with the number of units of work since the last call
OnStage = Callable[[str, int], None]  # called with what is being done and how many units it has


@accepts(*SIMILARITY_OPTIONS)
def similarity(
    model_a: nn.Module | str | Path | Opened,
    model_b: nn.Module | str | Path | Opened,
    *,
    rows: str = "mean",
    limit: int = ROWS,
    sinks: bool = False,
    revision_b: str | None = None,
    tokenizer_b: Any = None,
    command: str | None = None,
    progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
    **options: Any,
) -> Run:
    """Compare every layer of one text model with every layer of another on the same texts.

    Widths, depths and tokenizers may differ. A document that is too long for one of the models is cut at the same
    character for both.

    Args:
        model_a: A folder, a hub id, what `open_model` returned, or a module, which needs `tokenizer`.
        model_b: The model to compare it with.
        rows: One row per document: the "mean" of its tokens, its "last" token or its first ("cls"). Or one row per
            word ("words"): the token that holds the last character of the word.
        limit: Most rows to compare.
        sinks: Count first tokens of windows and massive tokens too.
        revision_b: Revision of the second model if it is on the hub. Default: `revision`.
        tokenizer_b: Tokenizer of the second model. Default: `tokenizer`, or its own.
        command: The command line, for the run's own record.
        progress: Called with the number of documents, rows or permutations since the last call.
        on_stage: Called with what is being done, and how many units of work it has.
        {options}

    Returns:
        A run with `layer_cka`, `layer_overlap`, `layer_imbalance` and `similarity_p` of all pairs of layers. The site
        is the layer of the first model, the variant `other` that of the second. With `out`, a run of the same request
        that is complete is returned as it is.

    Raises:
        InputError: The request cannot be met, or a document cannot be aligned; the message says which and why.
        StoreError: `out` holds a run of another request. Pass `overwrite=True` to replace it.

    Example:
        >>> run = similarity("./a", "./b", text="corpus.jsonl")                # doctest: +SKIP
        >>> run.frame().query("metric == 'layer_cka' and site == 'resid.3'")   # doctest: +SKIP
    """
    request = Request.of(**options)
    _require_request(request, rows, limit)
    opening = request.opening()
    tokenizers = request.model.tokenizer, request.model.tokenizer if tokenizer_b is None else tokenizer_b
    first = _open(model_a, opening, tokenizers[0])
    second = _open(model_b, {**opening, "revision": revision_b or opening["revision"]}, tokenizers[1])
    own = {"rows": rows, "limit": limit, "sinks": sinks, "tokenizer b": plain(tokenizer_b)}
    work = _ModelComparison((first, second), tokenizers, request, rows, limit, sinks, _Reporter(progress, on_stage))
    named = not any(isinstance(model, nn.Module) for model in (model_a, model_b))  # a module's weights may change
    info = {**run_info(_facts(request, first, second, own), []), "metrics": similarity_cards()}
    out, overwrite = request.output.out, request.output.overwrite
    with open_run(out, info, command=command, overwrite=overwrite, resumable=named) as run:
        if not run.info["complete"]:
            if not run.is_empty:
                run.rewind(0)  # the process was interrupted between two measures
            work.write(run)
        return run


@dataclass(frozen=True)
class _Reporter:
    progress: OnProgress | None
    on_stage: OnStage | None

    def begin(self, what: str, units: int) -> OnProgress | None:
        """Report what begins; return what to call with the units of work that are done."""
        if self.on_stage is not None:
            self.on_stage(what, units)
        return self.progress


@dataclass(frozen=True)
class _ModelComparison:
    """One comparison of two opened models."""

    models: tuple[Opened, Opened]
    tokenizers: tuple[Any, Any]  # that replace those of the models; None: their own
    request: Request
    kind: str
    limit: int
    sinks: bool
    report: _Reporter

    def write(self, run: Run) -> None:
        """Compare the models and write all records."""
        readers = [self._reader(side, name) for side, name in enumerate(("model a", "model b"))]
        documents = self._documents(readers)
        words = self._words(documents, readers[0]) if self.kind == "words" else []
        sides = [
            layer_rows(
                opened,
                documents.texts,
                RowChoice(self.kind, self.sinks, _tokens_of_words(reader, documents, words)),
                self.request.having(tokenizer=tokenizer),
                self.report.begin(f"model {label}", len(documents.texts)),
            )
            for label, opened, tokenizer, reader in zip("ab", self.models, self.tokenizers, readers, strict=True)
        ]
        compared, left_out = self._aligned(documents, words, sides)
        sizes = block_sizes(compared.document)
        count = self.report.begin("layer pairs", len(compared.document))
        tables = layer_similarity(*compared.rows, sizes, count)
        run.append(similarity_records(compared, tables, sizes))
        permuted = permuted_rows(compared.document, self.request.statistics.seed)
        if len(permuted) >= FEWEST_BLOCKS:
            a, b = ([x[permuted] for x in side] for side in compared.rows)
            count = self.report.begin("permutations", DRAWS)
            tests = permutation_tests(a, b, DRAWS, self.request.statistics.seed, count)
            run.append(p_records(compared, tests, len(permuted)))
        run.update_info(
            unit=documents.unit,
            similarity={
                "documents": len(documents.texts),
                "compared": len(compared.document),
                "cut": documents.cut,
                "left out": left_out,
                "permuted rows": len(permuted),
                "blocks": len(sizes),
            },
            complete=True,
        )

    def _reader(self, side: int, label: str) -> TextReader:
        opened = self.models[side]
        tokenizer = opened.processor if self.tokenizers[side] is None else self.tokenizers[side]
        window = window_length(opened, self.request.data.window)
        return text_reader(f"{label} ({opened.info['source']})", tokenizer, window)

    def _documents(self, readers: Sequence[TextReader]) -> SharedDocuments:
        data = self.request.data
        texts = text_documents(data.text, field=data.field, mark=data.document_mark)
        most = self.limit if self.kind != "words" else max(1, self.limit // _FEWEST_WORDS)
        return shared_documents(texts, readers, most)

    def _words(self, documents: SharedDocuments, reader: TextReader) -> list[list[tuple[int, int]]]:
        """Choose words of each document at random, equally many of each if it has enough."""
        chance = random.Random(self.request.statistics.seed)
        most = max(1, self.limit // len(documents.texts))
        chosen = []
        for text in documents.texts:
            spans = word_spans(text)
            chosen.append(sorted(chance.sample(spans, min(most, len(spans)))))
        return chosen

    def _aligned(
        self, documents: SharedDocuments, words: Sequence[Sequence[Any]], sides: Sequence[LayerRows]
    ) -> tuple[ComparedRows, int]:
        """Leave out rows that consist of sinks in either model; return the others and how many were left out."""
        counts = [len(each) for each in words] if self.kind == "words" else [1] * len(documents.texts)
        document = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))  # (n,)
        without_sinks = not self.sinks and self.kind != "cls"
        keep = ~(sides[0].sink | sides[1].sink) if without_sinks else torch.ones(len(document), dtype=torch.bool)
        if int(keep.sum()) < FEWEST_BLOCKS:
            raise InputError(
                f"Only {int(keep.sum())} of {len(keep)} rows can be compared; at least {FEWEST_BLOCKS} are needed. "
                "Use more or longer documents, or count first tokens too (--sinks)."
            )
        rows = [tuple(x[keep] for x in side.rows) for side in sides]
        compared = ComparedRows(
            sites=(sides[0].sites, sides[1].sites),
            rows=(rows[0], rows[1]),
            document=document[keep],
            unit=documents.unit,
            tokens="no-sink" if without_sinks else "all",
            independent=self.kind != "words",
        )
        return compared, int((~keep).sum())


def block_sizes(document: Tensor) -> list[int]:
    """Return the numbers of rows of at most 32 contiguous blocks of whole documents; [] for too few documents.

    >>> block_sizes(torch.tensor([0, 0, 1, 2, 3, 5]))
    [2, 1, 1, 1, 1]
    """
    counts = document.unique_consecutive(return_counts=True)[1]  # (documents,)
    if len(counts) < FEWEST_BLOCKS:
        return []
    return [int(part.sum()) for part in torch.tensor_split(counts, min(BLOCKS, len(counts)))]


def permuted_rows(document: Tensor, seed: int) -> Tensor:
    """Return the rows that are permuted: one per document, at most 1,024, chosen at random, in order."""
    order = torch.randperm(len(document), generator=torch.Generator().manual_seed(seed))
    chosen: dict[int, int] = {}
    for row in order.tolist():
        chosen.setdefault(int(document[row]), row)
    return torch.tensor(sorted(list(chosen.values())[:_PERMUTED]))


def _tokens_of_words(
    reader: TextReader, documents: SharedDocuments, words: Sequence[Sequence[tuple[int, int]]]
) -> list[list[int]]:
    texts = documents.texts if words else ()
    return [word_tokens(reader, text, words[number], number) for number, text in enumerate(texts)]


def _require_request(request: Request, rows: str, limit: int) -> None:
    if rows not in ROW_KINDS:
        raise unknown("kind of rows", rows, ROW_KINDS)
    if request.data.text is None:
        raise InputError("Two models are compared on a text. Give one: --text FILE (text=… in Python).")
    if limit < FEWEST_BLOCKS:
        raise InputError(f"A comparison needs at least {FEWEST_BLOCKS} rows, not {limit}. Use a larger limit.")


def _open(model: Any, opening: dict[str, Any], tokenizer: Any) -> Opened:
    if isinstance(model, str | Path):
        model = open_model(model, **opening)
    if isinstance(model, nn.Module) and tokenizer is not None:
        model = opened_module(model, None if isinstance(tokenizer, str) else tokenizer)
        model = replace(model, info={"revision": None, "digest": None, **model.info})
    if not isinstance(model, Opened):
        raise InputError(
            f"{type(model).__name__} comes without a tokenizer. Pass tokenizer=… (and tokenizer_b=…), a folder or a "
            "hub id."
        )
    if model.modality != "text":
        raise InputError(f"{model.info['source']} takes {model.modality}, and only text models are compared.")
    return model


def _facts(request: Request, first: Opened, second: Opened, own: dict[str, Any]) -> dict[str, Any]:
    """What the run reports about its request."""
    text = request.data.text
    source = str(text) if isinstance(text, str | Path) else type(text).__name__
    named = {
        f"model {label}": [opened.info[key] for key in ("source", "revision", "digest")]
        for label, opened in (("a", first), ("b", second))
    }
    return {
        "kind": "similarity",
        "model": first.info,
        "other_model": second.info,
        "data": {"source": source, "window": request.data.window},
        "similarity": {**own, "neighbours": NEIGHBOURS, "distance": "Euclidean", "permutations": DRAWS},
        "token_policy": {"first token": own["sinks"], "massive": None if own["sinks"] else f"> {MASSIVE:g} medians"},
        "seed": request.statistics.seed,
        "complete": False,
        "settings": {**request.settings(), **named, "data": source, **own},
    }
