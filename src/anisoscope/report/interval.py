"""From a standard error to a 95 % interval: Student's t, because errors rest on few blocks."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from anisoscope.stats.inference import t_quantile


@lru_cache(maxsize=256)
def t_factor(error_kind: str | None) -> float:
    """Half the width of a 95 % interval in standard errors, for the `error_kind` of a record.

    >>> round(t_factor("jackknife-16-documents"), 3), round(t_factor(None), 3)
    (2.131, 1.96)
    """
    blocks = re.search(r"\d{1,9}", error_kind or "")
    return half_width(None if blocks is None else int(blocks[0]))


@lru_cache(maxsize=256)
def half_width(blocks: int | None) -> float:
    """The 97.5 % quantile of Student's t with blocks − 1 degrees of freedom; of the normal law if that is unknown."""
    return t_quantile(0.975, math.inf if blocks is None or blocks < 2 else blocks - 1)
