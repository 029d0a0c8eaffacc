"""Tokens that are massive at a site: which they are, and where they stand."""

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

# What is massive at one site must be held at all later ones. It is massive by the median of all rows; half as much by a
# batch's median, which is what is known when a row goes by, makes sure of it.
OUTSIZED = MASSIVE / 2


def massive(cloud: Cloud) -> Tensor:
    """Keys of the tokens that are massive here; more than a block can hold is an error."""
    extremes = cloud.get(Extremes)
    outsized = extremes.x.double().norm(dim=1).cpu() > MASSIVE * cloud.get(Norms).median
    if extremes.overflowed:
        raise InputError(
            f"more than {len(outsized)} tokens have over {OUTSIZED:g} times the median norm, too many to be outliers "
            "and to be held; look at the norms first (`--metrics massive_tokens,outlier_dimensions` on fewer tokens)"
        )
    return extremes.table[:, 0].cpu()[outsized]


def described(cloud: Cloud, keys: Tensor, site: Site) -> list[dict[str, Any]]:
    """Where the tokens of these keys stand, and how long they are."""
    extremes = cloud.get(Extremes)
    median = cloud.get(Norms).median or 1.0
    tokens = extremes.rows.tokens
    return [
        {
            "site": str(site),
            "document": int(tokens.document[place]),
            "position": int(tokens.position[place]),
            "token": int(tokens.token[place]),
            "norm over median": round(float(extremes.x[place].double().norm()) / median, 1),
        }
        for place in torch.isin(extremes.table[:, 0].cpu(), keys).nonzero()[:, 0].tolist()
    ]
