"""From a standard error to a 95 % interval: Student's t, since errors rest on few blocks."""

from __future__ import annotations

import math
import re
from functools import lru_cache

_NORMAL = 1.959963984540054  # the 97.5 % point of the normal law


@lru_cache(maxsize=256)
def t_factor(error_kind: str | None) -> float:
    """Half the width of a 95 % interval in standard errors: Student's t with blocks − 1 degrees of freedom.

    >>> round(t_factor("jackknife-16-documents"), 3), round(t_factor(None), 3)
    (2.131, 1.96)
    """
    blocks = re.search(r"\d{1,9}", error_kind or "")
    return _NORMAL if blocks is None or int(blocks[0]) < 2 else student(int(blocks[0]) - 1)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t: closed forms for 1 and 2 degrees of freedom, then Cornish and Fisher's series.

    The series is within 0.13 % of the tables from 3 degrees of freedom on, within 0.002 % from 8 on.
    """
    if freedom <= 2:
        return math.tan(0.475 * math.pi) if freedom == 1 else 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, v = _NORMAL, freedom
    terms = (
        z,
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4),
    )
    return sum(terms)
