"""The rows of all layers of a model for given documents: one per document, or one per word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.data.batches import model_batches
from anisoscope.data.inputs import device_of, first_item, on_device, peek
from anisoscope.data.token_table import Batch
from anisoscope.errors import CaptureError, InputError
from anisoscope.hooks import expand, find_layout, observe_sites, side_effect_free
from anisoscope.measurement.current_batch import SequenceSinks, sequence_means
from anisoscope.measurement.request import Request
from anisoscope.models.open import Opened
from anisoscope.records import Site
from anisoscope.stats.arithmetic import plain

ROW_KINDS = ("mean", "last", "cls", "words")
OnDocuments = Callable[[int], None]  # called with the number of documents since the last call


@dataclass(frozen=True)
class RowChoice:
    """Which rows to take from each document.

    Attributes:
        kind: "mean" of its tokens, its "last" token, its first one ("cls"), or one token per word ("words").
        sinks: Whether first tokens of windows and massive tokens count.
        words: For "words", the index of the token of each word, by document.
    """

    kind: str
    sinks: bool = False
    words: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class LayerRows:
    """The rows of one model.

    Attributes:
        sites: Sites in the order of a forward pass.
        rows: For each site the rows (n, d), float32 on the CPU, in the order of the documents and their words.
        sink: (n,) bool: rows that consist of sinks only, and do not count unless sinks do.
    """

    sites: tuple[Site, ...]
    rows: tuple[Tensor, ...]
    sink: Tensor


def layer_rows(
    opened: Opened, texts: Sequence[str], choice: RowChoice, request: Request, on_documents: OnDocuments | None = None
) -> LayerRows:
    """Run a model over documents that fit into one window each, and keep the chosen rows of every site.

    The model runs in evaluation mode; its modes are restored. The sites of an encoder-decoder model are those of its
    encoder: its decoder reads the text shifted by one token.

    Args:
        opened: A text model.
        texts: The documents.
        choice: Which rows to keep.
        request: The sites, the window, the number of documents per forward pass and the tokenizer.
        on_documents: Called with the number of documents since the last call.

    Raises:
        InputError: A document has no tokens for this model, or rows hold NaN or Inf.
        CaptureError: The model has none of the sites.
    """
    with side_effect_free(opened.model):
        opened.model.eval()
        return _observed(opened, texts, choice, request, on_documents)


def _observed(
    opened: Opened, texts: Sequence[str], choice: RowChoice, request: Request, on_documents: OnDocuments | None
) -> LayerRows:
    name, model = opened.info["source"], opened.model
    data = request.data
    batches: Iterable[Batch] = model_batches(
        opened, texts, window=data.window, batch=data.batch, tokenizer=request.model.tokenizer
    )
    first, batches = peek(batches)
    layout = find_layout(model, first_item(first, device_of(model)))
    sites = [site for site in expand(layout, list(request.sites.sites)) if site.stack != "dec"]
    if not sites:
        raise CaptureError(f"{name} has none of the sites {', '.join(request.sites.sites)}. Try embed, resid or final.")
    parts: dict[Site, list[Tensor]] = {site: [] for site in sites}
    sinks: list[Tensor] = []
    done = 0  # documents that have been read
    for batch in batches:
        _require_next(batch, done, name)
        taken = _TakenRows(batch, choice, choice.words[done : done + len(batch.document)])
        # no_grad, not inference_mode: what a model caches in there could not take part in training afterwards
        with torch.no_grad(), observe_sites(model, sites, taken.take, layout=layout) as log:
            model(**on_device(batch.inputs, device_of(model)))
        log.require(sites)
        for site in sites:
            parts[site].append(taken.rows[site])
        sinks.append(taken.sink())
        done += len(batch.document)
        if on_documents is not None:
            on_documents(len(batch.document))
    if done < len(texts):
        raise _not_aligned(done, name)
    rows = tuple(torch.cat(parts[site]) for site in sites)
    _require_finite(sites, rows, name)
    return LayerRows(tuple(sites), rows, torch.cat(sinks))


@dataclass
class _TakenRows:
    """The rows of one batch while it runs through the model; a sink stays one at later sites."""

    batch: Batch
    choice: RowChoice
    words: Sequence[Sequence[int]]
    rows: dict[Site, Tensor] = field(default_factory=dict)
    sinks: Tensor | None = None  # (b, T) bool, at the last site
    empty: Tensor | None = None  # (b,) bool: documents without a token that counts, at any site so far

    def __post_init__(self) -> None:
        self._all_sinks = SequenceSinks(self.batch)

    def take(self, site: Site, x: Tensor) -> None:
        """Keep the rows of a site, given its tensor (b, T, d)."""
        if x.ndim != 3 or x.shape[1] != self.batch.counts.shape[1]:
            raise InputError(f"{site} has no position for every token. Compare other sites, such as resid.")
        x = plain(x)
        self.sinks = self._all_sinks.at(site, x)
        if self.choice.kind == "mean":
            self.rows[site] = self._means(x)
        else:
            document, token = self._tokens()
            self.rows[site] = x[document.to(x.device), token.to(x.device)].cpu().float()

    def sink(self) -> Tensor:
        """Return which rows consist of sinks only, (n,) bool; call it after the forward pass."""
        if self.choice.kind == "mean":
            assert self.empty is not None
            return self.empty
        assert self.sinks is not None
        return self.sinks[self._tokens()]

    def _means(self, x: Tensor) -> Tensor:
        assert self.sinks is not None
        counts = self.batch.counts if self.choice.sinks else self.batch.counts & ~self.sinks  # (b, T)
        empty = ~counts.any(1)  # (b,)
        self.empty = empty if self.empty is None else self.empty | empty
        return sequence_means(x, counts).cpu().float()  # (b, d)

    def _tokens(self) -> tuple[Tensor, Tensor]:
        """Return the document of each row in the batch, and the token in its window."""
        b, T = self.batch.counts.shape
        if self.choice.kind == "words":
            document = [i for i, tokens in enumerate(self.words) for _ in tokens]
            return torch.tensor(document, dtype=torch.long), torch.tensor([t for ts in self.words for t in ts]).long()
        if self.choice.kind == "cls":
            return torch.arange(b), torch.zeros(b, dtype=torch.long)
        text = self.batch.counts & ~self.batch.special  # (b, T)
        return torch.arange(b), torch.where(text, torch.arange(T), 0).amax(1)


def _require_next(batch: Batch, done: int, name: str) -> None:
    """Check that the rows of a batch are the next documents, each in one window."""
    expected = torch.arange(done, done + len(batch.document))
    wrong = (batch.document[:, 0] != expected).nonzero().flatten()
    if len(wrong):
        raise _not_aligned(int(expected[wrong[0]]), name)


def _not_aligned(number: int, name: str) -> InputError:
    return InputError(
        f"Document {number + 1} cannot be aligned: it has no tokens in {name}, or more than a window. Remove it."
    )


def _require_finite(sites: Sequence[Site], rows: Sequence[Tensor], name: str) -> None:
    for site, x in zip(sites, rows, strict=True):
        bad = int((~x.isfinite()).any(1).sum())
        if bad:
            raise InputError(
                f"From {site} of {name} on, {bad} rows hold NaN or Inf. Try --dtype float32, or check the weights."
            )
