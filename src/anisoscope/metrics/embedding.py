"""What search by similarity asks of rows: directions spread over the sphere, and no hubs among the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from scipy.special import hyp0f1
from torch import Tensor

from anisoscope.metrics.dimension import copies_note
from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.neighbours import Neighbours
from anisoscope.stats.sphere_pairs import SHARPNESS, SpherePairs

HUB_NEIGHBOURS = 10
_KEEPS = {"rotation", "scale", "shift"}


def sphere_uniformity(d: int) -> float:
    """Return the uniformity of directions that are uniform on the sphere in d dimensions.

    ln E exp(−2‖u − v‖²) = −4 + ln E exp(4c), with c the cosine of two such directions. E exp(κc) is the confluent
    hypergeometric limit function 0F1(d/2; κ²/4).

    >>> round(sphere_uniformity(3), 4), round(sphere_uniformity(768), 4)
    (-2.0798, -3.9896)
    """
    return -2 * SHARPNESS + math.log(float(hyp0f1(d / 2, SHARPNESS**2)))


@metric(
    SpherePairs, low=-4 * SHARPNESS, high=0, keeps={"rotation", "scale", "row-scale"}, paper="wang2020",
    knows={"sphere": (sphere_uniformity(16), 0.02), "one direction": 0}, null=lambda iso, _: sphere_uniformity(iso.dim),
    notable="high", row_effect="none",
)  # fmt: skip
def uniformity(pairs: SpherePairs) -> Value:
    """How evenly the directions of the rows cover the sphere: 0 if all are equal, about −4 if they are spread out.

    ln of the mean of exp(−2‖u − v‖²) over pairs of different rows, with u = x/‖x‖ (t = 2, as published), from 2,048
    rows of the keyed sample. The null is exact: directions that are uniform on the sphere.
    """
    n = float(pairs.rows.sum())
    if n < 2:
        raise Undefined(f"{n:.0f} rows have a direction", "give at least two rows that are not zero")
    return Value(math.log(float(pairs.kernel.sum()) / (n * (n - 1))), n=int(n))


@metric(
    Neighbours, low=-math.inf, high=math.inf, keeps=_KEEPS, paper="radovanovic2010", headline={"of": "skewness"},
)  # fmt: skip
def hubness(neighbours: Neighbours) -> Iterator[Value]:
    """How unequally often rows are among the ten nearest neighbours of others; index is ten.

    From the 10-occurrence N, the number of rows that have a row among their ten nearest. Hubs are rows with large N:
    they turn up for very many queries. Anti-hubs have N = 0: search by similarity to other rows never finds them.

    - `of=skewness`: E(N − EN)³/σ³. 0 if N is symmetric. Above 1.4, a few hubs crowd out other results.
    - `of=robin hood`: ½·Σ|N − EN|/ΣN, the share of places that would have to change hands to make all rows equal.
    - `of=anti-hubs`: share of rows with N = 0.

    All three grow with the intrinsic dimension, so compare with rows without structure of the same spectrum, as
    `anisoscope embeddings` does.
    """
    count = occurrences(neighbours)
    centred = count - count.mean()
    spread = float(centred.square().mean())
    note = copies_note(neighbours)
    numbers = {
        "skewness": float(centred.pow(3).mean()) / spread**1.5 if spread > 0 else 0.0,
        "robin hood": 0.5 * float(centred.abs().sum() / count.sum()),
        "anti-hubs": float((count == 0).double().mean()),
    }
    for name, value in numbers.items():
        yield Value(value, index=HUB_NEIGHBOURS, variant={"of": name}, n=len(neighbours.x), note=note)


def occurrences(neighbours: Neighbours) -> Tensor:
    """Return how often each queried row is among the ten nearest of the queried rows, (q,) float64.

    Without a block, its rows count neither as queries nor as results: which rows are hubs varies more from sample to
    sample than how often one of them is found.
    """
    n, k = len(neighbours.x), HUB_NEIGHBOURS
    if n <= 2 * k or neighbours.index.shape[1] < k:
        raise Undefined(f"{n} different rows are not enough", f"give more than {2 * k}")
    return torch.bincount(neighbours.index[:, :k].flatten(), minlength=n)[neighbours.row].double()
