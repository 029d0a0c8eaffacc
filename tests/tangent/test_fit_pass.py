"""The pass over the fit tokens: which rows bases are fitted on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anisoscope
from anisoscope.tangent import Tangent

PCA = Tangent(proxies=["pca"], ranks=[4], nulls=["orientation"])
MASSIVE = 7  # a token id


class MassiveInTheMiddle(nn.Module):
    """Three layers; the first makes the row of token 7 a thousand times as long, the second shrinks it back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([Scale(1000.0), Scale(0.001), Scale(1.0)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, input_ids)
        return x


class Scale(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return x + 1e-3 * self.linear(x) if self.by == 1 else torch.where((ids == MASSIVE)[..., None], x * self.by, x)


def windows(seed: int) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(0, 64, (8, 32), generator=draw)} for _ in range(3)]


def counted_tokens(batches: list[dict[str, Tensor]]) -> int:
    """Tokens that are neither the first of their window nor token 7."""
    return sum(int((batch["input_ids"][:, 1:] != MASSIVE).sum()) for batch in batches)


def test_a_token_that_is_massive_at_an_early_site_is_left_out_of_the_fit_at_all_later_sites() -> None:
    torch.manual_seed(0)
    fitted = anisoscope.fit_frames(MassiveInTheMiddle().eval(), windows(1), tangent=PCA, sites=["embed", "resid"])
    expected = counted_tokens(windows(1))
    assert expected < 3 * 8 * 31
    assert {name: bases.n for name, bases in fitted.items()} == {
        "embed": 3 * 8 * 31,
        "resid.0": expected,
        "resid.1": expected,
        "resid.2": expected,
    }


def test_a_token_that_is_massive_at_an_early_site_is_left_out_of_the_test_at_all_later_sites() -> None:
    torch.manual_seed(0)
    model = MassiveInTheMiddle().eval()

    def squared(output: Tensor, labels: Tensor) -> Tensor:
        return output.square().sum()

    run = anisoscope.tangent_test(model, fit=windows(1), test=windows(2), loss=squared, tangent=PCA)
    rows = {record.site: record.n for record in run.records() if record.metric == "gradient_enrichment"}
    expected = counted_tokens(windows(2))
    assert [rows[f"grad.resid.{layer}"] for layer in range(3)] == [expected] * 3
    # the weight of the last layer comes after the flag
    assert rows["grad.weight.blocks.2.linear"] == expected


def test_with_sinks_every_token_is_fitted_on() -> None:
    model = MassiveInTheMiddle().eval()
    fitted = anisoscope.fit_frames(model, windows(1), tangent=PCA, sinks=True)
    assert {bases.n for bases in fitted.values()} == {3 * 8 * 32}
