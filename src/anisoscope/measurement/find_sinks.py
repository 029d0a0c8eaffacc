"""`sinks`: measure which tokens of a model are massive, at which layers and in which coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from anisoscope.data.inputs import as_batch, device_of, on_device
from anisoscope.errors import InputError
from anisoscope.hooks import observe_sites
from anisoscope.measurement.current_batch import counted
from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.model_data import open_for, read_data, with_data
from anisoscope.measurement.policies import FlaggedTokens, massive, massive_norm
from anisoscope.measurement.request import ModelOptions, Request, accepts, names_of, require_data
from anisoscope.measurement.sink_profile import PatchNorms, SinkClass, SinkCoordinate, SinkId, Sinks, SinkSite
from anisoscope.models.open import Opened
from anisoscope.records import Site
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.sample import Extremes

SINK_OPTIONS = (
    *("text", "field", "document_mark", "images", "audio", "seconds", "window", "batch", "tokens", "special", "seed"),
    *(name for name in names_of(ModelOptions) if name != "tensor_parallel"),
)
CLASSES = ("first", "delimiter", "frequent", "other")
_FREQUENT = 16  # ids that make up the class of frequent tokens
_COORDINATES = 4  # per class
_IDS = 256  # flagged ids that are listed per site
_IMAGES = 64  # whose patches are mapped


@accepts(*SINK_OPTIONS)
def sinks(
    model: nn.Module | str | Path | Opened,
    data: Any = None,
    *,
    progress: Any = None,
    **options: Any,
) -> Sinks:
    """Find the massive tokens of a model: layer by layer, by class of token and by coordinate.

    A token is massive at the first site of the residual stream where its norm exceeds five medians, and stays flagged
    at later sites: the rule of the token policy `no-sink`.

    Args:
        model: A module, a folder, a hub id, or what `open_model` returned.
        data: What the model reads, as in `measure`: texts, rows of a dataset, or batches. Instead of `data`, a model
            can read `text`, `images` or `audio` from files.
        progress: Called with the number of tokens since the last call.
        {options}

    Returns:
        The profile: a table (`frame()`), a file (`save`, `Sinks.load`) and a mask for rows (`mask`).

    Raises:
        InputError: The request cannot be met; the message says what to change.

    Example: `keep = ~sinks("./model", text="corpus.jsonl").mask(rows, site="resid.7", token_ids=ids)`.
    """
    request, batches = with_data(Request.of(**options), data)
    require_data(request, batches=batches is not None)
    opened = open_for(model, request)
    if batches is None:
        batches = read_data(opened, request)
    seen = _Seen(request.statistics.special, request.statistics.tokens)
    flagged = _Flagged(seen, opened)
    run = measure(
        opened if not isinstance(model, nn.Module) else model,
        seen.counting(batches),
        sites=["embed", "resid"],
        metrics=["massive_tokens"],
        errors=False,
        tokens=request.statistics.tokens,
        special=request.statistics.special,
        seed=request.statistics.seed,
        on_site=flagged.add,
        progress=progress,
    )
    medians = {entry.site: entry.median for entry in flagged.sites}
    patches = _patch_norms(opened.model, seen.images, medians) if seen.images else ()
    facts = {"source": request.data_name(), "tokens": run.info["data"]["tokens"]}
    return Sinks(run.info["model"], facts, tuple(flagged.sites), patches)


@dataclass
class _Seen:
    """What the batches hold: how often each token id occurs, how many windows there are, and the first images."""

    special: bool
    limit: int | None
    tokens: int = 0
    ids: dict[str, Counter[int]] = field(default_factory=dict)  # by stack: "dec" has its own tokens
    firsts: dict[str, Counter[int]] = field(default_factory=dict)  # ids of first tokens
    windows: int = 0
    images: list[Any] = field(default_factory=list)

    def counting(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches until there are enough tokens, and count what they hold."""
        for data in batches:
            if self.limit is not None and self.tokens >= self.limit:
                return
            batch = as_batch(data, self.windows)
            self.windows += len(batch.document)
            for stack, table in (("", batch), ("dec", batch.decoder)):
                if table is not None:
                    counts = counted(table, self.special)
                    first = counts & (table.offset == 0)
                    self.ids.setdefault(stack, Counter()).update(table.token[counts].tolist())
                    self.firsts.setdefault(stack, Counter()).update(table.token[first].tolist())
            self.tokens += int(counted(batch, self.special).sum())
            if "pixel_values" in batch.inputs and sum(len(each.document) for each in self.images) < _IMAGES:
                self.images.append(batch)
            yield data

    def of(self, stack: str) -> tuple[Counter[int], Counter[int]]:
        """Ids of all tokens and of first tokens of a stack."""
        name = "dec" if stack == "dec" and "dec" in self.ids else ""
        return self.ids.get(name, Counter()), self.firsts.get(name, Counter())


@dataclass
class _Flagged:
    """Takes the clouds of one site after another and notes which tokens are massive."""

    seen: _Seen
    opened: Opened
    sites: list[SinkSite] = field(default_factory=list)
    flags: FlaggedTokens = field(default_factory=FlaggedTokens)
    kept: dict[str, dict[int, tuple[int, bool]]] = field(default_factory=dict)  # by stack: key -> id, is first

    def add(self, result: Any) -> None:
        """Note the massive tokens of a site; `result` holds its clouds."""
        site, cloud = result.site, result.clouds["all"]
        extremes: Extremes = cloud.get(Extremes)
        keys = massive(cloud)
        if extremes.overflowed:
            raise InputError(
                f"too many first tokens of windows are massive at {site} to count them: windows are too short. "
                "Give longer documents"
            )
        here = torch.isin(extremes.table[:, 0].cpu(), keys)  # (m,)
        tokens = extremes.rows.tokens.take(here)
        kept = self.kept.setdefault(site.stack, {})
        new = set(self.flags.flag(site, keys).tolist())
        for key, token, offset in zip(tokens.key.tolist(), tokens.token.tolist(), tokens.offset.tolist(), strict=True):
            if key in new:
                kept[key] = (token, offset == 0)
        n, width = int(cloud.n), extremes.x.shape[1]
        median = cloud.get(Norms).median
        classes = self._classes(site, n, [*zip(tokens.token.tolist(), (tokens.offset == 0).tolist(), strict=True)])
        rows = extremes.x[here.to(extremes.x.device)].double().cpu()  # (m, d)
        self.sites.append(
            SinkSite(
                str(site),
                n,
                width,
                median,
                massive_norm(median),
                len(keys),
                _gaussian_massive(n, width),
                tuple(_with_coordinates(entry, rows[member]) for entry, member in classes),
                self._ids(site),
            )
        )

    def _classes(self, site: Site, n: int, tokens: list[tuple[int, bool]]) -> list[tuple[SinkClass, Tensor]]:
        """The classes of a site's tokens, each with which of its massive tokens belong to it."""
        ids, firsts = self.seen.of(site.stack)
        others = ids - firsts  # occurrences that are not the first of their window
        kinds = self._kinds(others)
        sizes = Counter({"first": sum(firsts.values()) if _has_ids(ids) else min(self.seen.windows, n)})
        for token, count in others.items() if _has_ids(ids) else ():
            sizes[kinds.get(token, "other")] += count
        if not _has_ids(ids):
            sizes["other"] = n - sizes["first"]

        def kind(token: int, first: bool) -> str:
            return "first" if first else kinds.get(token, "other")

        massive_kinds = [kind(*each) for each in tokens]
        flagged = Counter(kind(*each) for each in self.kept[site.stack].values())
        classes = []
        for name in CLASSES:
            size = sizes[name]
            if not size:
                continue
            member = torch.tensor([each == name for each in massive_kinds], dtype=torch.bool)
            found = int(member.sum())
            null = len(tokens) * size / n
            p = float(stats.hypergeom.sf(found - 1, n, min(size, n), len(tokens))) if tokens else 1.0
            classes.append((SinkClass(name, size, found, flagged[name], null, p), member))
        return classes

    def _kinds(self, ids: Mapping[int, int]) -> dict[int, str]:
        """The class of each token id that is a delimiter or frequent."""
        kinds = {token: "delimiter" for token in ids if token >= 0 and _is_delimiter(self._text(token))}
        rest = Counter({token: count for token, count in ids.items() if token not in kinds and token >= 0})
        return kinds | {token: "frequent" for token, _ in rest.most_common(_FREQUENT)}

    def _ids(self, site: Site) -> tuple[SinkId, ...]:
        """The flagged ids of a site, those with most flagged tokens first."""
        ids, firsts = self.seen.of(site.stack)
        flagged = Counter(token for token, first in self.kept[site.stack].values() if not first and token >= 0)
        return tuple(
            SinkId(token, self._text(token), ids[token] - firsts[token], count)
            for token, count in flagged.most_common(_IDS)
        )

    def _text(self, token: int) -> str | None:
        processor: Any = self.opened.processor if self.opened.modality == "text" else None
        return str(processor.decode([token])) if hasattr(processor, "decode") else None


def _has_ids(ids: Mapping[int, int]) -> bool:
    return any(token >= 0 for token in ids)


def _is_delimiter(text: str | None) -> bool:
    """Whether a token has a text without letters and digits: spaces, line breaks, punctuation."""
    return text is not None and not any(c.isalnum() for c in text)


def _gaussian_massive(n: int, width: int) -> float:
    """How many of n Gaussian rows have a norm over five medians; exactly 0 for any width that models have."""
    return float(n * stats.chi.sf(massive_norm(float(stats.chi.median(width))), width))


def _with_coordinates(entry: SinkClass, rows: Tensor) -> SinkClass:
    """Add the coordinates that carry most of the squared norm of a class's massive rows, (m, d)."""
    if not len(rows):
        return entry
    energy = (rows.square() / rows.square().sum(1, keepdim=True)).mean(0)  # (d,)
    top = energy.topk(min(_COORDINATES, len(energy)))
    value = rows.mean(0)
    coordinates = tuple(
        SinkCoordinate(int(index), float(share), float(value[index]))
        for share, index in zip(top.values, top.indices, strict=True)
    )
    return SinkClass(entry.name, entry.tokens, entry.massive, entry.flagged, entry.null, entry.p, coordinates)


# --- images -------------------------------------------------------------------------------------------------------


def _patch_norms(model: nn.Module, batches: list[Any], medians: Mapping[str, float]) -> tuple[PatchNorms, ...]:
    """The norms of the patches of the first images at every site of the stream."""
    norms: dict[str, list[Tensor]] = {}

    def collect(site: Site, x: Tensor) -> None:
        norms.setdefault(str(site), []).append(torch.linalg.vector_norm(x.double(), dim=-1).cpu())  # (b, T)

    with torch.no_grad(), observe_sites(model, ["embed", "resid"], collect):
        for batch in batches:
            model(**on_device(batch.inputs, device_of(model)))
    height, width = batches[0].inputs["pixel_values"].shape[-2:]
    maps = []
    for site, parts in norms.items():
        relative = torch.cat(parts) / (medians.get(site) or 1.0)  # (images, T)
        grid = patch_grid(relative.shape[1], height / width)
        if grid is not None:
            patches = relative[:, relative.shape[1] - grid[0] * grid[1] :]  # class tokens come first
            mean, largest = patches.mean(0).tolist(), patches.amax(0).tolist()
            maps.append(PatchNorms(site, *grid, len(relative), tuple(mean), tuple(largest)))
    return tuple(maps)


def patch_grid(positions: int, ratio: float) -> tuple[int, int] | None:
    """Return height and width of the grid of patches in a sequence that may begin with a few other tokens.

    Args:
        positions: Length of the sequence.
        ratio: Height over width of the image.

    >>> patch_grid(197, 1.0), patch_grid(201, 1.0), patch_grid(9, 0.5)
    ((14, 14), (14, 14), (2, 4))
    """
    for leading in range(9):  # a class token, and up to eight in all with registers
        for height in range(1, positions - leading + 1):
            width = round(height / ratio)
            if height * width == positions - leading and abs(height - ratio * width) < 1e-9:
                return height, width
    return None
