"""Tables of tokens at another number of positions."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.data.token_table import TokenTable, table_of_length


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.booleans(), min_size=1, max_size=12), length=st.integers(1, 12))
def test_a_pooled_position_counts_if_all_positions_it_covers_count(counts: list[bool], length: int) -> None:
    T = len(counts)
    column = torch.zeros(1, T, dtype=torch.int64)
    table = TokenTable(column + 5, column, column, column, torch.tensor([counts]), torch.zeros(1, T, dtype=torch.bool))
    pooled = table_of_length(table, length)
    expected = []
    for t in range(length):
        covered = [i for i in range(T) if i * length < (t + 1) * T and (i + 1) * length > t * T]
        expected.append(all(counts[i] for i in covered))
    assert pooled.counts[0].tolist() == expected
    assert pooled.document[0].tolist() == [5] * length
    if length != T:
        assert pooled.position[0].tolist() == list(range(length))
