"""Damage to files for fuzzing: bytes flipped, cut, inserted, repeated, and numbers of a header edited."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from hypothesis import Phase, settings
from hypothesis import strategies as st

Damage = Callable[[bytes], bytes]

# The same few examples on every machine, and many random ones in the slow tests.
# A failing example is shown as found: making it smaller would take longer than finding it.
_PHASES = (Phase.explicit, Phase.generate)
SHORT = settings(derandomize=True, deadline=None, max_examples=20, database=None, phases=_PHASES)
LONG = settings(deadline=None, max_examples=600, database=None, phases=_PHASES)

_NUMBERS = (
    b"0",
    b"-1",
    b"1e400",
    b"NaN",
    b"99999999999999999999",
    b"4611686018427387904",
    b"9" * 5000,
    b"null",
    b'"x"',
)
_PIECES = (b"", b"\x00", b"\xff" * 8, b"\x00\x00\x00\x00\x00\x00\x00\x10", b"[" * 3000, b"{}", b"\n", b"../../x")


def _flipped(position: float, value: int, data: bytes) -> bytes:
    at = int(position * len(data))
    return data[:at] + bytes([value]) + data[at + 1 :]


def _cut(position: float, data: bytes) -> bytes:
    return data[: int(position * len(data))]


def _inserted(position: float, piece: bytes, over: bool, data: bytes) -> bytes:
    at = int(position * len(data))
    return data[:at] + piece + data[at + (len(piece) if over else 0) :]


def _edited(position: float, number: bytes, data: bytes) -> bytes:
    """Replace one of the numbers that are text in the data, such as a shape in a header."""
    found = list(re.finditer(rb"-?\d+", data))
    if not found:
        return data
    hit = found[int(position * len(found))]
    return data[: hit.start()] + number + data[hit.end() :]


def _header(length: int, data: bytes) -> bytes:
    """Replace the first eight bytes: the length of the header in a safetensors file."""
    return length.to_bytes(8, "little") + data[8:]


_positions = st.floats(0, 1, exclude_max=True)
_one: st.SearchStrategy[Damage] = st.one_of(
    st.builds(partial, st.just(_flipped), _positions, st.integers(0, 255)),
    st.builds(partial, st.just(_cut), _positions),
    st.builds(partial, st.just(_inserted), _positions, st.sampled_from(_PIECES), st.booleans()),
    st.builds(partial, st.just(_edited), _positions, st.sampled_from(_NUMBERS)),
    st.builds(partial, st.just(_header), st.sampled_from([0, 1, 2**20, 2**40, 2**60, 2**64 - 1])),
)


def _after_another(several: list[Damage]) -> Damage:
    def damage(data: bytes) -> bytes:
        for each in several:
            data = each(data)
        return data

    return damage


damages: st.SearchStrategy[Damage] = st.lists(_one, min_size=1, max_size=3).map(_after_another)
