"""Records as compressed columns: small enough for a page, exact to seven digits, unpacked by the page itself.

The bytes are compressed by zlib: a header (its length in four bytes, then JSON), then one column after the other.
Texts and whole numbers are codes into lists of the header; numbers are float32, NaN if missing. Every column is stored
by byte plane (all first bytes, then all second bytes), which compresses better.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.report.interval import t_factor
from anisoscope.report.tables import BEHIND, RANGE, depths_of, layer_position, parse_site, parse_variant, stream_of

_CODED = ("run", "site", "tokens", "variant", "index", "step", "n", "note", "error_kind", "version")
# An error or a null value needs only four digits; more would be noise that does not compress.
_BITS = {"value": 23, "error": 12, "null": 12, "x": 23}
_LARGEST = float(np.finfo(np.float32).max)
_ORDER = ["metric", "run", "variant", "tokens", "index", "site", "step"]  # so that neighbours in a column are similar


def pack(table: pd.DataFrame, outline: Mapping[str, Any]) -> str:
    """A table and an outline (any JSON) as text, for `unpack` in table.js."""
    rows, starts = _by_metric(table)
    head: dict[str, Any] = {"outline": outline, "rows": len(rows), "starts": starts, "columns": [], "lists": {}}
    planes: list[bytes] = []
    for name in (*_CODED, *(column for column in RANGE if column in rows)):
        codes, values = pd.factorize(rows[name], use_na_sentinel=False)
        kind = "u2" if len(values) < 1 << 16 else "u4"
        head["lists"][name] = [_plain(value) for value in values]
        head["columns"].append([name, kind])
        planes.append(_planes(codes.astype(f"<{kind}")))
    for name, bits in (item for item in _BITS.items() if item[0] in rows):
        head["columns"].append([name, "f4"])
        numbers = rows[name].to_numpy(dtype="<f8", na_value=np.nan).clip(-_LARGEST, _LARGEST)
        planes.append(_planes(rounded(numbers.astype("<f4"), bits)))
    head["sites"] = _site_facts(head["lists"]["site"])
    head["depths"] = {f"{run}\n{stack}": depth for (run, stack), depth in depths_of(table).items()}
    head["variants"] = [parse_variant(text) for text in head["lists"]["variant"]]
    head["factors"] = [t_factor(kind) for kind in head["lists"]["error_kind"]]
    text = json.dumps(head, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    body = len(text).to_bytes(4, "little") + text + b"".join(planes)
    return base64.b64encode(zlib.compress(body, 6)).decode()


def _by_metric(table: pd.DataFrame) -> tuple[pd.DataFrame, list[list[Any]]]:
    """The rows sorted by metric, and the first row of each metric: [[metric, first row], …]."""
    rows = table.iloc[np.lexsort([_ranks(table[name]) for name in reversed(_ORDER)])]
    first = np.flatnonzero(~rows["metric"].duplicated())
    return rows, [[rows["metric"].iloc[row], int(row)] for row in first]


def _ranks(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """The rank of each value in its column: sites as in a forward pass, metrics and runs as first seen, None last."""
    values: Any
    codes, values = pd.factorize(column, use_na_sentinel=False)  # by distinct values: a million rows repeat a few
    if column.name in ("metric", "run"):
        return codes
    key = parse_site if column.name == "site" else None
    known = [code for code, missing in enumerate(pd.isna(values)) if not missing]
    order = sorted(known, key=lambda code: values[code] if key is None else key(values[code]))
    ranks = np.full(len(values), len(values))
    ranks[order] = np.arange(len(order))
    return ranks[codes]


def rounded(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Float32 numbers rounded to `bits` bits after the leading one, (n,) -> (n,).

    >>> float(rounded(np.array([1.0001], "<f4"), 12)[0])
    1.0
    """
    if bits >= 23:
        return values
    drop = 23 - bits
    whole = np.where(np.isnan(values), 0, values).astype("<f4").view("<u4")
    cut = (whole + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)
    return np.where(np.isnan(values), np.float32(np.nan), cut.view("<f4")).astype("<f4")


def _planes(column: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a column by plane: all first bytes, then all second bytes."""
    return column.view(np.uint8).reshape(len(column), column.itemsize).T.tobytes()


def _site_facts(sites: Sequence[str]) -> list[dict[str, Any]]:
    """What the page needs to know about each site; it adds the run's number of layers to the position of `final`."""
    facts = []
    for text in sites:
        site = parse_site(text)
        # As in a model without layers, so that the page only has to add the number of layers.
        layer = layer_position(site, 0)
        facts.append(
            {
                "stream": stream_of(site),
                "stack": site.stack,
                "layer": layer,
                "behind": site.kind in BEHIND,
                "head": site.head,
                "heads": site.kind == "pattern",
            }
        )
    return facts


def _plain(value: Any) -> Any:
    """A value for JSON: None if missing, Python numbers."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
