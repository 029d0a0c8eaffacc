"""Branches and routers through the engine: the records of a run against statistics of one forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.errors import MetricError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.stats.router_sums import RouterSums
from tests.tiny_models import build, text

NAMES = ["write_ratio", "write_cosine", "router_load", "router_entropy", "dead_experts", "router_margin", "v_norm"]
SITES = ["resid", "attn", "mlp", "router", "pattern"]


def measured(metrics: list[str], sites: list[str], batches: int = 8) -> dict[tuple[Any, ...], Any]:
    """Records by site, metric, variant and index, from batches that are all equal."""
    model, _ = build("mixtral")
    records = list(anisoscope.measure(model, [text() for _ in range(batches)], metrics=metrics, sites=sites).records())
    assert {r.tokens for r in records} == {"all"}
    return {(r.site, r.metric, *r.variant.values(), r.index): r for r in records}


def test_records_of_branches_and_routers_equal_those_of_one_forward() -> None:
    found = measured(NAMES, SITES)
    assert {site for site, metric, *_ in found if metric == "write_ratio"} == {
        f"{kind}.{layer}" for kind in ("attn", "mlp") for layer in range(3)
    }
    model, batch = build("mixtral")
    counts = batch["attention_mask"].bool()
    seen: dict[str, Any] = {}
    with (
        torch.no_grad(),
        observe_sites(
            model,
            ["attn", "mlp", "router"],
            lambda site, x: seen.update({str(site): x}),
            layout=find_layout(model, batch),
            branches=True,
        ),
    ):
        model(**batch)
    for site in ("attn.0", "mlp.2"):
        written, stream = (x[counts].double() for x in (seen[site].written, seen[site].stream))
        ratio, cosine = found[site, "write_ratio", "all", None], found[site, "write_cosine", None]
        assert ratio.value == pytest.approx(float(written.norm() / stream.norm()), rel=1e-5)
        cosines = torch.nn.functional.cosine_similarity(written, stream)
        assert cosine.value == pytest.approx(float(cosines.mean()), abs=1e-6)
        assert (cosine.null, cosine.n) == (0.0, 8 * len(written))
    sums = RouterSums.of(seen["router.1"], counts)
    load = sums.load.numpy()
    assert found["router.1", "router_load", None].value == pytest.approx(load.std() / load.mean())
    assert found["router.1", "router_entropy", None].value == pytest.approx(float(sums.entropy / sums.tokens))
    assert found["router.1", "dead_experts", None].value == (load == 0).sum()
    assert found["router.1", "router_margin", None].n == 8 * int(sums.margin_tokens)
    assert found["pattern.1", "v_norm", "max", 0].error is None


def test_metrics_of_branches_and_routers_need_their_sites() -> None:
    for name, missing in (("write_ratio", "branch"), ("router_load", "router")):
        with pytest.raises(MetricError, match=missing):
            measured([name], ["resid"], batches=1)
