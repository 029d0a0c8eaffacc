"""Maps of layers × steps and of heads."""

from __future__ import annotations

from anisoscope.report.map_figures import MOST_STEPS, step_edges, thinned


def test_columns_of_a_map_meet_and_fill_the_axis() -> None:
    steps = [0, 1, 2, 4, 8, 16]
    edges = list(step_edges(steps, steps).values())
    assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
    assert (edges[0][0], edges[-1][1]) == (0.5, 16.0)


def test_many_steps_are_thinned_evenly_on_their_axis() -> None:
    for steps in (list(range(1000)), [*range(100), 10**6]):
        kept = thinned(steps)
        assert len(kept) <= MOST_STEPS
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
        assert set(kept) <= set(steps)
    assert thinned([3, 5]) == [3, 5]
