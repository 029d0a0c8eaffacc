"""Fit tokens and test tokens share no window and no document."""

from __future__ import annotations

import pytest
import torch

import anisoscope
from anisoscope.data.inputs import as_batch
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.tangent.splits import make_side, require_apart, split_batches
from tests.tangent_rows import batches
from tests.tiny_models import build


def test_a_window_in_both_sides_raises() -> None:
    fit = batches(1)
    test = [*batches(2), {"input_ids": fit[1]["input_ids"][2:3]}]
    with pytest.raises(InputError, match="1 windows are in both"):
        anisoscope.tangent_test(build("llama")[0], fit=fit, test=test)


def test_a_document_in_both_sides_raises() -> None:
    def numbered(seed: int, first: int) -> list[Batch]:
        return [as_batch(batch, first + 6 * i) for i, batch in enumerate(batches(seed))]

    apart = [make_side(numbered(seed, first), "side", sinks=False, seed=0) for seed, first in ((1, 0), (2, 100))]
    require_apart(*apart)
    shared = make_side(numbered(2, 17), "test", sinks=False, seed=0)
    with pytest.raises(InputError, match="Document 17 and 0 more are in both"):
        require_apart(apart[0], shared)


def test_halves_of_a_text_share_no_document() -> None:
    long = [as_batch(batch, 6 * i) for i, batch in enumerate(batches(3, number=4))]
    one = torch.full_like(long[2].document, 11)  # continues the first half
    long[2] = Batch(**{**vars(long[2]), "document": torch.cat((one[:2], long[2].document[2:]))})
    fit, test = split_batches(long)
    sides = [make_side(side, "side", sinks=False, seed=0) for side in (fit, test)]
    require_apart(*sides)
    assert [len(batch.token) for batch in test] == [4, 6]
    with pytest.raises(InputError, match="at least two"):
        split_batches(long[:1])


def test_blocks_are_whole_documents_of_similar_size() -> None:
    side = make_side(batches(4, number=4, size=8), "test", sinks=False, seed=0)
    assert sorted(side.block.values()) == [b for b in range(8) for _ in range(4)]
