"""Lab trainings as subjects of claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anisoscope.studies.claims.runner import find_size
from anisoscope.studies.claims.subjects import Lab


def test_halves_of_the_lab_text_are_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(40 * 4).view(40, 4)
    monkeypatch.setattr(Lab, "held_out", lambda self, cell: ids)
    lab = Lab(Path("nowhere"), find_size("tiny"), 3, lambda _: None)
    halves = [torch.cat([batch["input_ids"] for batch in lab.batches("decoder", half)]) for half in (0, 1)]
    assert torch.cat(halves).equal(ids)
    assert int(halves[0].max()) < int(halves[1].min())
