"""A sample with fewer rows than neighbours are listed kept two of them where tokens were left out."""

import torch

from anisoscope.metrics import find
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.neighbours import Neighbours
from anisoscope.stats.rows import Rows, token_table
from anisoscope.stats.sample import Sample


def cloud_of(x: torch.Tensor) -> Cloud:
    number = torch.arange(len(x))
    return Cloud({"Sample": Sample.of(Rows(x, token_table(number, torch.zeros_like(number), offset=number + 1)), 100)})


def test_the_other_rows_keep_all_their_neighbours() -> None:
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    cloud = cloud_of(x)
    cloud.get(Neighbours)
    gone = cloud.get(Sample).table[:2, 0]
    left = cloud.without_tokens(gone, first=False)
    kept = left.get(Sample).x
    alone = Cloud({"Sample": left.get(Sample)})
    found, expected = left.get(Neighbours), alone.get(Neighbours)
    assert found.distance.shape == (22, 21)
    away = torch.cdist(kept.double(), kept.double()).sort(1).values[:, 1:]
    torch.testing.assert_close(found.distance.sort(0).values, away[:, :21].sort(0).values)
    for metric in find(["gride", "mle_dimension", "local_pca_dimension"]):
        assert [v.key for v in metric.values(left)] == [v.key for v in metric.values(alone)]
    torch.testing.assert_close(found.distance, expected.distance)
