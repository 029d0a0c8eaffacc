"""The token policy `no-sink`: which tokens are massive, and where they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.sample import Extremes

# A token flagged at one site must be kept at all later sites. The final limit uses the median of all rows; during the
# pass only the batch median is known, so rows over half the limit are kept.
OUTSIZED = MASSIVE / 2
STREAM = ("embed", "resid", "final.in", "final")  # where a massive token is flagged


def massive_norm(median: float) -> float:
    """The norm above which a token is massive: five medians of all rows of the site."""
    return MASSIVE * median


class FlaggedTokens:
    """The massive tokens of each stack, by key: flagged at the first residual site where they are massive.

    A flagged token stays flagged at all later sites of its stack, so that every site after it leaves out the same
    tokens. This is the second half of the policy `no-sink`; the first leaves out the first token of each window.

    >>> flagged = FlaggedTokens()
    >>> flagged.flag(Site("resid", 1), torch.tensor([7, 9])).tolist()
    [7, 9]
    >>> flagged.at(Site("resid", 0)).tolist(), flagged.at(Site("resid", 2)).tolist()
    ([], [7, 9])
    """

    def __init__(self) -> None:
        self._new: dict[str, list[tuple[Site, Tensor]]] = {}

    def at(self, site: Site) -> Tensor:
        """Keys of the tokens flagged at this site or at an earlier one of its stack, (n,) int64."""
        none = torch.zeros(0, dtype=torch.int64)
        return torch.cat([none, *(keys for first, keys in self._new.get(site.stack, []) if not site < first)])

    def flag(self, site: Site, keys: Tensor) -> Tensor:
        """Flag the tokens that are massive at a site.

        Returns:
            The keys that were not flagged before.
        """
        new = keys[~torch.isin(keys, self.at(site))]
        if len(new):
            self._new.setdefault(site.stack, []).append((site, new))
        return new


def massive(cloud: Cloud) -> Tensor:
    """Return the keys of the tokens that are massive in a cloud, first tokens of windows included.

    Raises:
        InputError: More rows than a block can keep are over half the limit. If only first tokens of windows are too
            many, some of them are missing: the policy leaves them out in any case.
    """
    extremes = cloud.get(Extremes)
    outsized = extremes.x.double().norm(dim=1).cpu() > massive_norm(cloud.get(Norms).median)
    if cloud.stats["Extremes"].overflowed:
        raise InputError(
            f"more than {len(outsized)} tokens have over {OUTSIZED:g} times the median norm, too many to be outliers. "
            "Look at the norms first: `--metrics massive_tokens,outlier_dimensions` on fewer tokens"
        )
    return extremes.table[:, 0].cpu()[outsized]


def described(cloud: Cloud, keys: Tensor, site: Site) -> list[dict[str, Any]]:
    """Return where the tokens of these keys are, and their norms; without first tokens of windows."""
    extremes: Extremes = cloud.stats["Extremes"]
    median = cloud.get(Norms).median or 1.0
    tokens = extremes.rows.tokens
    return [
        {
            "site": str(site),
            "document": int(tokens.document[index]),
            "position": int(tokens.position[index]),
            "token": int(tokens.token[index]),
            "norm over median": round(float(extremes.x[index].double().norm()) / median, 1),
        }
        for index in torch.isin(extremes.table[:, 0].cpu(), keys).nonzero()[:, 0].tolist()
    ]
