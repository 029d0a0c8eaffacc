"""The ledger of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import StoreError
from anisoscope.sweep.ledger import Ledger


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"5", b'{"key": 5}', b'{"step": 1}', b"[" * 100_000, b'{"key": "a", "sketch": ["x"]}', b"\xff"],
)
def test_a_damaged_ledger_is_reported_with_its_line(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(b'{"key": "a", "step": 1}\n' + line + b"\n")
    with pytest.raises(StoreError, match=r"tasks\.jsonl, line 2"):
        Ledger(tmp_path)
