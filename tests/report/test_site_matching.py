"""Sites of two models that belong together."""

from __future__ import annotations

from anisoscope.report.site_matching import site_pairs, site_ranges


def stream(layers: int, *more: str) -> list[str]:
    return ["embed", *(f"resid.{i}" for i in range(layers)), *more, "final"]


def test_models_of_one_depth_are_matched_by_name() -> None:
    pairs = site_pairs([stream(6), stream(6)], [{}, {}])
    assert pairs.partner == {site: site for site in stream(6)}
    assert not pairs.by_depth
    assert pairs.text == ""


def test_six_layers_are_matched_with_thirty_by_relative_depth() -> None:
    pairs = site_pairs([stream(6), stream(30)], [{}, {}])
    assert pairs.by_depth
    assert pairs.partner == {
        "embed": "embed",
        **{f"resid.{i}": f"resid.{5 * i + 4}" for i in range(6)},
        "final": "final",
    }
    assert pairs.depths[0]["resid.2"] == pairs.depths[1]["resid.14"] == 0.5
    assert pairs.depths[0]["embed"] == 0
    assert pairs.depths[1]["resid.29"] == 1
    assert "6 and 30 layers" in pairs.text


def test_the_order_of_the_runs_does_not_change_the_pairs() -> None:
    there, back = (site_pairs(sites, [{}, {}]).partner for sites in ([stream(4), stream(9)], [stream(9), stream(4)]))
    assert {second: first for first, second in there.items()} == back


def test_only_sites_of_one_kind_are_matched() -> None:
    pairs = site_pairs([stream(2, "attn.0", "attn.1"), stream(4, "mlp.0", "grad.resid.3")], [{}, {}])
    assert set(pairs.partner) == {"embed", "resid.0", "resid.1", "final"}
    encoder = site_pairs([["enc.resid.0", "dec.resid.0"], ["enc.resid.0", "dec.resid.0", "dec.resid.1"]], [{}, {}])
    assert encoder.partner == {"enc.resid.0": "enc.resid.0", "dec.resid.0": "dec.resid.1"}


def test_single_heads_of_models_of_different_depth_have_no_partner() -> None:
    sites = [["resid.0", "q.0.1", "pattern.0"], ["resid.0", "resid.1", "q.0.1", "q.1.1", "pattern.0", "pattern.1"]]
    assert site_pairs(sites, [{}, {}]).partner == {"resid.0": "resid.1"}


def test_a_layer_that_the_deeper_run_did_not_measure_has_no_partner() -> None:
    sites = [["resid.0", "resid.1", "resid.2"], ["resid.0", "resid.11"]]
    assert site_pairs(sites, [{}, {}]).partner == {"resid.2": "resid.11"}


def test_a_run_of_a_few_requested_layers_is_matched_by_number() -> None:
    """The depth of its model is not known, so its last layer must not be taken for the last of the model."""
    few = {"settings": {"sites": ["resid.3"]}}
    pairs = site_pairs([["resid.3"], stream(6)], [few, {"settings": {"sites": ["embed", "resid", "final"]}}])
    assert pairs.partner == {"resid.3": "resid.3"}
    assert "matched by number: the first run" in pairs.text


def test_ranges_of_layers_are_short() -> None:
    assert site_ranges(["embed", *(f"resid.{i}" for i in (0, 1, 2, 5)), "grad.resid.6", "weight.a.b"]) == (
        "embed, resid.0–2, resid.5, grad.resid.6, weight.a.b"
    )
