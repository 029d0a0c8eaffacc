"""Records and runs that several tests of the store share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from anisoscope.records import Record
from anisoscope.store.run import Run


def record(i: int = 0, **changes: Any) -> Record:
    return Record(**{"site": "resid.0", "metric": "isoscore", "value": i / 7, "step": i, "n": 100, **changes})


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A second process of the same Python, with pipes."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


finite = st.none() | st.floats(allow_nan=False, allow_infinity=False)


wholes = st.integers(-(1 << 63), (1 << 63) - 1)


variants = st.dictionaries(texts, texts | st.booleans() | st.integers() | st.lists(texts, max_size=2), max_size=2)


any_record = st.builds(
    Record,
    site=st.sampled_from(["embed", "resid.11", "q.pre.3.4", "weight.Ä/../~ %41", "vectors"]),
    metric=texts,
    value=finite,
    run=texts.filter(bool),
    step=wholes,
    version=wholes,
    tokens=texts,
    index=st.none() | wholes,
    variant=variants,
    error=finite,
    error_kind=st.none() | texts,
    null=finite,
    n=st.none() | wholes,
    note=st.none() | texts,
)


def full_run(path: Path) -> Run:
    with Run.create(path, info={"model": "gpt2"}) as run:
        run.append(
            [
                Record("embed", "isoscore", 0.1 + 0.2, n=7, error=1e-300, error_kind="jackknife-16", null=-0.0),
                Record("resid.1", "gride", None, index=4, variant={"b": 1, "a": "é"}, note='too few, "rows"\nhere'),
                Record("resid.1", "gride", 1e300, index=1 << 62, step=-1, version=3, tokens="no-sink"),
            ]
        )
    return run
