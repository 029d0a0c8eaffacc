"""A real decoder has about one massive token in two hundred: a long text held more of them than could be told apart."""

import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope import metrics
from anisoscope.errors import InputError

_MASSIVE, _LONG = 7, 6  # token ids


class Stretched(nn.Module):
    """Two blocks; the first makes some tokens fifty times as long."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([Stretch(50.0), Stretch(1.0)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, input_ids)
        return x


class Stretch(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        longer = torch.where((ids == _LONG)[..., None], x * min(self.by, 3.0), x)
        return torch.where((ids == _MASSIVE)[..., None], x * self.by, longer)


def ids_of(documents: int, massive: int) -> Tensor:
    """Documents of 32 tokens, evenly spread among them so many of the massive one, never the first of its window."""
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(8, 64, (documents, 32), generator=made)
    place = torch.randperm(documents * 31, generator=made)[:massive]
    ids[place // 31, 1 + place % 31] = _MASSIVE
    return ids


def test_all_of_them_are_left_out() -> None:
    torch.manual_seed(0)
    model, ids = Stretched().eval(), ids_of(640, 600)
    batches = [{"input_ids": part} for part in ids.split(20)]
    run = anisoscope.measure(model, batches, sites=["embed", "resid"], metrics=["spectral_anisotropy"], tokens=640 * 32)
    assert run.info["removed"]["count"] == 600
    keep = ids != _MASSIVE
    keep[:, 0] = False
    expected = metrics.spectral_anisotropy(model.embedding(ids).detach()[keep])
    found = {r.site: r for r in run.records() if r.tokens == "no-sink"}
    for site in ("resid.0", "resid.1"):
        assert found[site].value == pytest.approx(expected, rel=1e-6)
        assert found[site].n == int(keep.sum())
        assert found[site].error is not None


def test_more_than_a_block_can_hold_is_said() -> None:
    torch.manual_seed(0)
    ids = ids_of(640, 640 * 8)  # a quarter of all
    batches = [{"input_ids": part} for part in ids.split(20)]
    with pytest.raises(InputError, match="times the median norm, too many"):
        anisoscope.measure(Stretched().eval(), batches, sites=["resid"], metrics=["spectral_anisotropy"])


def test_massive_tokens_that_one_block_could_not_hold_are_not_forgotten() -> None:
    """Elsewhere there are rows that are long and not massive, so not all that is held is."""
    torch.manual_seed(0)
    ids = ids_of(640, 0)
    ids[:40] = ids_of(40, 40 * 10)
    ids[300:, 5] = _LONG
    batches = [{"input_ids": part} for part in ids.split(20)]
    with pytest.raises(InputError, match="times the median norm, too many"):
        anisoscope.measure(Stretched().eval(), batches, sites=["resid"], metrics=["spectral_anisotropy"], tokens=20480)
