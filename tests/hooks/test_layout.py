"""Names of sites and kinds, and the errors for those that a model does not have."""

from __future__ import annotations

import pytest

from anisoscope.errors import CaptureError, InputError
from anisoscope.hooks import expand, find_layout, observe_sites
from anisoscope.records import Site
from tests.captures import captured
from tests.tiny_models import build


@pytest.mark.parametrize(
    ("name", "site", "message"),
    [
        ("gpt2", "rezid", "(?i)rezid.*did you mean .?resid"),
        ("gpt2", "resid.7", "(?i)did you mean .?resid"),
        ("gpt2", "enc.resid", "(?i)no site"),
        ("gpt2", "layer.1", "Did you mean 'resid.1', the output of layer 1"),
        ("gpt2", "h_1", "Did you mean 'resid.1'"),
        ("bert", Site("final"), "no final norm after its last block. Use the last resid"),
        ("mamba", "q.0", "state-space layers have no attention"),
        ("torch_encoder", "q.0", "nn.MultiheadAttention and linear attention do not show"),
        (
            "gpt2",
            "in.transformer.h.0.mpl",
            "(?i)no module .*transformer.h.0.mpl.*did you mean .?transformer.h.0.mlp",
        ),
        ("gpt2", "weight.lm_head", "(?i)no site of this model"),
    ],
)
def test_unknown_sites_are_errors_that_suggest_similar_names(name: str, site: str | Site, message: str) -> None:
    model, _ = build(name)
    with pytest.raises((InputError, CaptureError), match=message), observe_sites(model, [site], lambda site, x: None):
        pass


def test_a_number_is_the_output_of_that_layer() -> None:
    model, _ = build("gpt2")
    layout = find_layout(model)
    assert expand(layout, [1]) == [Site("resid", 1)]
    with pytest.raises(InputError, match=r"No site of this model named 'resid.99'"):
        expand(layout, [99])
    with pytest.raises(InputError, match="must be a list"):
        expand(layout, "resid")


def test_a_kind_expands_to_the_sites_that_the_model_has() -> None:
    model, _ = build("bert")
    layout = find_layout(model)
    assert expand(layout, ["final"]) == []
    assert [str(site) for site in expand(layout, ["resid", "embed", "q.1", "q.1.3"])] == [
        *("embed", "resid.0", "q.1", "q.1.3", "resid.1", "resid.2")
    ]
    two, _ = build("t5")
    assert [str(site) for site in expand(find_layout(two), ["dec.resid"])] == ["dec.resid.0", "dec.resid.1"]
    with pytest.raises(CaptureError, match="BertModel has none of the sites final"):
        captured(model, {}, ["final"], layout)
