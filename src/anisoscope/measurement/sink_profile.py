"""`Sinks`: where the massive tokens of a model are, as a file, a table and a mask for rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from anisoscope.errors import InputError, unknown
from anisoscope.records import Site
from anisoscope.store.files import file_errors, parse_errors, read_json, write_text

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "anisoscope.sinks", 1
_OFTEN = 0.5  # an id counts as a sink by itself if at least this share of its tokens is flagged
_LIMIT = 1 << 26  # bytes of a file
Part = TypeVar("Part")


@dataclass(frozen=True)
class SinkCoordinate:
    """One coordinate of the massive tokens: its mean share of their squared norm, and its mean value."""

    coordinate: int
    energy: float
    value: float


@dataclass(frozen=True)
class SinkClass:
    """The tokens of one class at one site.

    Attributes:
        name: `first` (of its window), `delimiter` (no letter or digit), `frequent` or `other`.
        tokens: Number of tokens of the class.
        massive: How many of them are massive at this site.
        flagged: How many are massive at this site or at an earlier one of the same stack.
        null: How many would be massive if the site's massive tokens were spread evenly over all tokens.
        p: Probability of at least `massive` under that null (hypergeometric).
        coordinates: The coordinates that carry most of the squared norm of the massive ones, the largest first.
    """

    name: str
    tokens: int
    massive: int
    flagged: int
    null: float
    p: float
    coordinates: tuple[SinkCoordinate, ...] = ()


@dataclass(frozen=True)
class SinkId:
    """A token id with flagged tokens that are not the first of their window."""

    id: int
    text: str | None
    tokens: int
    flagged: int


@dataclass(frozen=True)
class SinkSite:
    """One site: median norm, threshold, number of massive tokens and how they are spread.

    `null` is the number of rows over the threshold among as many Gaussian rows of the same width.
    """

    site: str
    n: int
    width: int
    median: float
    threshold: float
    massive: int
    null: float
    classes: tuple[SinkClass, ...]
    ids: tuple[SinkId, ...] = ()


@dataclass(frozen=True)
class PatchNorms:
    """Norms of an image's patches at one site over the site's median: mean and largest over the images."""

    site: str
    height: int
    width: int
    images: int
    mean: tuple[float, ...]  # height · width, row by row
    largest: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Sinks:
    """The massive tokens of a model by site, class of token and coordinate.

    Attributes:
        model: What was measured, as plain JSON.
        data: The text or images, and the number of tokens.
        sites: One entry per site of the residual stream, in order.
        patches: For images, the norms of the patches by site.

    >>> site = SinkSite("resid.0", n=100, width=2, median=1.0, threshold=5.0, massive=1, null=0.0, classes=())
    >>> profile = Sinks({}, {}, (site,))
    >>> profile.mask(torch.tensor([[3.0, 4.5], [1.0, 0.0]]), site="resid.0").tolist()
    [True, False]
    >>> profile
    <Sinks: 1 site, at most 1 massive token of 100>
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    sites: tuple[SinkSite, ...]
    patches: tuple[PatchNorms, ...] = field(default_factory=tuple)

    def __repr__(self) -> str:
        count = len(self.sites)
        worst = max(self.sites, key=lambda each: each.massive, default=None)
        most, n = (0, 0) if worst is None else (worst.massive, worst.n)
        tokens = f"{most:,} massive token{'' if most == 1 else 's'} of {n:,}"
        return f"<Sinks: {count} site{'' if count == 1 else 's'}, at most {tokens}>"

    def at(self, site: str | Site) -> SinkSite:
        """Return the entry of a site.

        Args:
            site: A site or its name, such as `resid.7`.

        Raises:
            InputError: The profile has no such site.
        """
        for entry in self.sites:
            if entry.site == str(site):
                return entry
        raise unknown("site of this profile", str(site), [entry.site for entry in self.sites])

    def mask(self, rows: Any, *, site: str | Site, token_ids: Any = None, positions: Any = None) -> Any:
        """Return which rows are sinks: the first token of each window, massive tokens, and ids that mostly are massive.

        A row is massive if its norm exceeds the threshold of its site, five medians of the profile. A token that was
        massive at an earlier site stays flagged, as in the token policy `no-sink`: pass the rows of all sites, such as
        what `anisoscope.capture` collected, to apply this exactly. With the rows of one site only, `token_ids` flag
        the tokens that mostly were massive at earlier sites.

        Args:
            rows: Rows of this site, (n, d) or (batch, time, d), of numpy or torch; or a mapping from sites to them.
            site: The site that the mask is for.
            token_ids: The token of each row, (n,) or (batch, time).
            positions: Position of each row in its window. By default 0, 1, … along time for (batch, time, d), and
                unknown for (n, d): then no row counts as a first token.

        Returns:
            A mask without the last axis of the rows, True for sinks, of the same kind (numpy or torch) and on the same
            device. `rows[~mask]` keeps the others.

        Raises:
            InputError: The site is not part of the profile, or the shapes do not fit.
        """
        entry = self.at(site)
        by_site = {str(name): x for name, x in rows.items()} if isinstance(rows, Mapping) else {entry.site: rows}
        if entry.site not in by_site:
            raise unknown("site in these rows", entry.site, by_site)
        x = torch.as_tensor(by_site[entry.site])
        mask = self._firsts(x, positions)
        for earlier in self._up_to(entry):
            if earlier.site in by_site:
                mask = mask | self._massive(torch.as_tensor(by_site[earlier.site]), earlier, mask)
        if token_ids is not None:
            ids = torch.as_tensor(token_ids).to(x.device)
            if ids.shape != mask.shape:
                raise InputError(
                    f"token_ids have the shape {tuple(ids.shape)}, the rows need {tuple(mask.shape)}: one id per row."
                )
            often = [each.id for each in entry.ids if each.flagged >= _OFTEN * each.tokens]
            mask = mask | torch.isin(ids, torch.tensor(often, dtype=ids.dtype, device=ids.device))
        return mask if isinstance(by_site[entry.site], Tensor) else mask.numpy()

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per site and class of token."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "site": entry.site,
                    "class": each.name,
                    "tokens": each.tokens,
                    "massive": each.massive,
                    "flagged": each.flagged,
                    "null": each.null,
                    "p": each.p,
                    "threshold": entry.threshold,
                    "coordinate": each.coordinates[0].coordinate if each.coordinates else None,
                    "energy": each.coordinates[0].energy if each.coordinates else None,
                }
                for entry in self.sites
                for each in entry.classes
            ]
        )

    def patch_rows(self) -> list[dict[str, Any]]:
        """Return one dict per site and patch: site, row, column, mean and largest norm over the median."""
        return [
            {
                "site": patch.site,
                "row": place // patch.width,
                "column": place % patch.width,
                "mean": patch.mean[place],
                "largest": patch.largest[place],
            }
            for patch in self.patches
            for place in range(len(patch.mean))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain JSON."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> Path:
        """Write the profile to a JSON file.

        Args:
            path: The file; it is replaced.

        Returns:
            The file.

        Raises:
            StoreError: The file cannot be written.
        """
        write_text(Path(path), json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a profile that `save` wrote; everything in the file is checked.

        Args:
            path: The file.

        Returns:
            The profile.

        Raises:
            InputError: The file is not a profile, or has another version.
        """
        file = Path(path)
        with file_errors("read", file), parse_errors(file, "write it again with `anisoscope sinks`"):
            return cls.from_json(read_json(file, _LIMIT))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Rebuild a profile from what `to_json` returned.

        Args:
            data: The JSON value.

        Returns:
            The profile.

        Raises:
            InputError: It is not a profile, or has another version.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise InputError(f"This is not a profile of sinks: its format is not {FORMAT!r}.")
        if data.get("version") != VERSION:
            raise InputError(f"The profile has version {data.get('version')!r}, this package reads {VERSION}.")
        _require_keys(data, {"format", "version", *(each.name for each in fields(cls))}, "profile")
        sites = tuple(_site(each) for each in _list(data["sites"]))
        patches = tuple(_patch(each) for each in _list(data["patches"]))
        for name in ("model", "data"):
            if not isinstance(data[name], Mapping):
                raise InputError(f"{name} of the profile is not an object.")
        return cls(data["model"], data["data"], sites, patches)

    def _up_to(self, entry: SinkSite) -> list[SinkSite]:
        """The sites of the same stack up to this one, in the order of a forward pass."""
        last = Site.parse(entry.site)
        return [each for each in self.sites if (site := Site.parse(each.site)).stack == last.stack and not last < site]

    def _firsts(self, x: Tensor, positions: Any) -> Tensor:
        if x.ndim not in (2, 3):
            raise InputError(f"The rows have the shape {tuple(x.shape)}; they must be (n, d) or (batch, time, d).")
        if positions is None:
            first = torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)
            if x.ndim == 3:
                first[:, 0] = True
            return first
        first = torch.as_tensor(positions).to(x.device) == 0
        if first.shape != x.shape[:-1]:
            raise InputError(f"positions have the shape {tuple(first.shape)}, the rows need {tuple(x.shape[:-1])}.")
        return first

    def _massive(self, x: Tensor, entry: SinkSite, like: Tensor) -> Tensor:
        if x.shape[:-1] != like.shape or x.shape[-1] != entry.width:
            raise InputError(
                f"The rows of {entry.site} have the shape {tuple(x.shape)}; this profile needs "
                f"{(*like.shape, entry.width)}. Is it a profile of this model?"
            )
        return torch.linalg.vector_norm(x.detach().double(), dim=-1).to(like.device) > entry.threshold


# --- reading ------------------------------------------------------------------------------------------------------


def _site(data: Any) -> SinkSite:
    entry = _of(SinkSite, data, classes=_class, ids=_id)
    Site.parse(entry.site)
    return entry


def _class(data: Any) -> SinkClass:
    return _of(SinkClass, data, coordinates=lambda each: _of(SinkCoordinate, each))


def _id(data: Any) -> SinkId:
    return _of(SinkId, data)


def _patch(data: Any) -> PatchNorms:
    patch = _of(PatchNorms, data, mean=float, largest=float)
    if not len(patch.mean) == len(patch.largest) == patch.height * patch.width:
        raise InputError(f"The patches of {patch.site} are not {patch.height} × {patch.width} numbers.")
    return patch


def _of(kind: type[Part], data: Any, **parts: Any) -> Part:
    """Build a frozen value from a JSON object; `parts` are fields that hold lists, with what makes their entries."""
    _require_keys(data, {each.name for each in fields(kind)}, kind.__name__)  # type: ignore[arg-type]
    values = dict(data)
    for each in fields(kind):  # type: ignore[arg-type]
        value = values[each.name]
        if each.name in parts:
            values[each.name] = tuple(parts[each.name](entry) for entry in _list(value))
        elif not _fits(value, str(each.type)):
            raise InputError(f"{each.name} of {kind.__name__} in the profile is {value!r}; it must be {each.type}.")
    return kind(**values)


def _fits(value: Any, kind: str) -> bool:
    if kind == "str | None":
        return value is None or isinstance(value, str)
    if kind == "str":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return kind == "float" and isinstance(value, float) and math.isfinite(value)
    return kind == "float" or isinstance(value, int)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InputError("The profile has an object where a list must be.")
    return list(value)


def _require_keys(data: Any, expected: set[str], what: str) -> None:
    if not isinstance(data, Mapping) or set(data) != expected:
        wrong = sorted(set(data) ^ expected) if isinstance(data, Mapping) else sorted(expected)
        raise InputError(f"The {what} has missing or unknown keys: {', '.join(map(str, wrong))}.")
