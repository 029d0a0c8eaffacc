"""Sinks as a product: the profile, its file, and a mask that is the token policy `no-sink`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import anisoscope
from anisoscope import InputError, Sinks
from anisoscope.cli import app
from anisoscope.measurement.find_sinks import patch_grid
from anisoscope.report.patch_map import patch_map
from tests import model_folders
from tests.sweep_folders import documents
from tests.tiny_models import LAYERS, build

MASSIVE_ID = 7
Inputs = list[dict[str, Tensor]]


@pytest.fixture(scope="module")
def with_sinks() -> tuple[Any, Inputs]:
    """A model in which token 7 is massive up to the layer before the last, and inputs with a few of them."""
    torch.manual_seed(0)
    model, _ = build("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[MASSIVE_ID] *= 60
    ids = [torch.randint(0, 99, (4, 12)) for _ in range(20)]
    return model, [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids]


@pytest.fixture(scope="module")
def profile(with_sinks: tuple[Any, Inputs]) -> Sinks:
    return anisoscope.sinks(*with_sinks)


def occurrences(batches: Inputs) -> int:
    """How often token 7 occurs after the first position."""
    return sum(int((batch["input_ids"][:, 1:] == MASSIVE_ID).sum()) for batch in batches)


def test_massive_tokens_are_counted_by_site_and_class(with_sinks: tuple[Any, Inputs], profile: Sinks) -> None:
    _, batches = with_sinks
    assert [entry.site for entry in profile.sites] == ["embed", *(f"resid.{layer}" for layer in range(LAYERS))]
    wanted = occurrences(batches)
    for entry in profile.sites:
        sizes = {each.name: each.tokens for each in entry.classes}
        assert sum(sizes.values()) == entry.n == 20 * 4 * 12
        assert sizes["first"] == 20 * 4
        assert sum(each.massive for each in entry.classes) == entry.massive
        assert sum(each.null for each in entry.classes) == pytest.approx(entry.massive)
        assert entry.threshold == 5 * entry.median
    first = profile.at("embed")
    assert sum(each.flagged for each in first.classes if each.name != "first") == wanted
    (token,) = first.ids
    assert (token.id, token.flagged, token.tokens) == (MASSIVE_ID, wanted, wanted)


def test_the_coordinates_are_those_of_the_massive_rows(with_sinks: tuple[Any, Inputs], profile: Sinks) -> None:
    model, batches = with_sinks
    rows = []
    with torch.no_grad(), anisoscope.capture(model, ["embed"]) as cache:
        for batch in batches:
            model(**batch)
            norms = cache["embed"].double().norm(dim=-1)
            rows.append(cache["embed"][norms > profile.at("embed").threshold].double())
    x = torch.cat(rows)
    energy = (x.square() / x.square().sum(1, keepdim=True)).mean(0)
    named = {c.coordinate: c for each in profile.at("embed").classes if each.massive for c in each.coordinates}
    top = int(energy.argmax())
    assert named[top].energy == pytest.approx(float(energy[top]), rel=1e-6)
    assert named[top].value == pytest.approx(float(x.mean(0)[top]), rel=1e-5)


def test_the_mask_of_all_sites_is_the_token_policy(with_sinks: tuple[Any, Inputs], profile: Sinks) -> None:
    model, batches = with_sinks
    run = anisoscope.measure(model, batches, sites=["embed", "resid"], metrics=["isoscore"], errors=False)
    counts = {(record.site, record.tokens): record.n for record in run.records()}
    masked = {entry.site: 0 for entry in profile.sites}
    with torch.no_grad(), anisoscope.capture(model, ["embed", "resid"]) as cache:
        for batch in batches:
            model(**batch)
            for site in masked:
                masked[site] += int(profile.mask(cache, site=site).sum())
    for site, count in masked.items():
        everything, rest = counts[site, "all"], counts[site, "no-sink"]
        assert everything is not None
        assert rest is not None
        assert count == everything - rest
    last = profile.sites[-1]
    assert last.massive == 0  # so only tokens that were massive before are flagged there
    assert sum(each.flagged for each in last.classes) > 0


def test_token_ids_flag_what_the_norm_of_one_site_no_longer_shows(
    with_sinks: tuple[Any, Inputs], profile: Sinks
) -> None:
    model, batches = with_sinks
    site = profile.sites[-1].site
    with torch.no_grad(), anisoscope.capture(model, [site]) as cache:
        model(**batches[0])
    ids = batches[0]["input_ids"]
    without = profile.mask(cache[site], site=site)
    assert int(without.sum()) == len(ids)  # first tokens only
    mask = profile.mask(cache[site], site=site, token_ids=ids)
    assert torch.equal(mask, (ids == MASSIVE_ID) | (torch.arange(12) == 0))


def test_the_mask_takes_numpy_and_flat_rows_and_positions(profile: Sinks) -> None:
    entry = profile.sites[0]
    rows = np.ones((3, entry.width), dtype=np.float32) * entry.median / np.sqrt(entry.width)
    rows[1] *= 5.2
    mask = profile.mask(rows, site=entry.site)
    assert isinstance(mask, np.ndarray)
    assert mask.tolist() == [False, True, False]
    assert profile.mask(rows, site=entry.site, positions=[0, 1, 2]).tolist() == [True, True, False]
    half = torch.from_numpy(rows).to(torch.bfloat16)
    assert profile.mask(half, site=entry.site).tolist() == [False, True, False]


def test_rows_that_do_not_fit_are_errors(profile: Sinks) -> None:
    entry = profile.sites[0]
    with pytest.raises(InputError, match="profile of this model"):
        profile.mask(torch.ones(3, entry.width + 1), site=entry.site)
    with pytest.raises(InputError, match="one id per row"):
        profile.mask(torch.ones(3, entry.width), site=entry.site, token_ids=[1, 2])
    with pytest.raises(InputError, match="Did you mean"):
        profile.mask(torch.ones(3, entry.width), site="resid.99")
    with pytest.raises(InputError, match="must be"):
        profile.mask(torch.ones(entry.width), site=entry.site)


def test_a_profile_is_the_same_after_saving_and_loading(profile: Sinks, tmp_path: Path) -> None:
    file = profile.save(tmp_path / "sinks.json")
    again = Sinks.load(file)
    assert again == profile
    assert len(again.frame()) == sum(len(entry.classes) for entry in profile.sites)


def damaged(change: Any) -> Any:
    return lambda data: {**data, **change}


@pytest.mark.parametrize(
    "change",
    [
        damaged({"format": "other"}),
        damaged({"version": 2}),
        damaged({"sites": {}}),
        damaged({"sites": [1]}),
        damaged({"more": 1}),
        damaged({"model": []}),
        lambda data: {key: value for key, value in data.items() if key != "patches"},
        lambda data: {**data, "sites": [{**data["sites"][0], "threshold": "5"}]},
        lambda data: {**data, "sites": [{**data["sites"][0], "n": -1}]},
        lambda data: {**data, "sites": [{**data["sites"][0], "n": 1.5}]},
        lambda data: {**data, "sites": [{**data["sites"][0], "site": "nowhere.1"}]},
        lambda data: {**data, "sites": [{**data["sites"][0], "classes": [{"name": "first"}]}]},
        damaged({"patches": [{"site": "a", "height": 2, "width": 2, "images": 1, "mean": [1.0], "largest": [1.0]}]}),
        lambda data: [],
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_profile_is_refused_in_one_line(profile: Sinks, tmp_path: Path, change: Any) -> None:
    file = tmp_path / "sinks.json"
    file.write_text(json.dumps(change(profile.to_json())))
    with pytest.raises(InputError) as refused:
        Sinks.load(file)
    assert "\n" not in str(refused.value)


def test_a_file_with_infinite_numbers_or_none_is_refused(profile: Sinks, tmp_path: Path) -> None:
    file = tmp_path / "sinks.json"
    file.write_text(json.dumps(profile.to_json()).replace(str(profile.sites[0].threshold), "Infinity"))
    with pytest.raises(InputError):
        Sinks.load(file)
    file.write_text("not json")
    with pytest.raises(InputError, match=r"sinks\.json"):
        Sinks.load(file)


def test_delimiters_are_a_class_of_their_own(tmp_path: Path) -> None:
    model_folders.gpt2(tmp_path / "model")
    documents(tmp_path / "text.jsonl")
    found = anisoscope.sinks(tmp_path / "model", text=tmp_path / "text.jsonl", tokens=300)
    names = [each.name for each in found.sites[0].classes]
    assert names == ["first", "delimiter", "frequent", "other"]
    assert found.data["tokens"] >= 300
    assert found.model["source"] == str(tmp_path / "model")


def test_the_command_writes_a_profile_and_prints_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_folders.gpt2(tmp_path / "model")
    documents(tmp_path / "text.jsonl")
    words = ["sinks", "model", "--text", "text.jsonl", "--tokens", "300"]
    done = CliRunner().invoke(app, [*words, "--out", "sinks.json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "massive tokens among" in done.stdout
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert Sinks.from_json(printed).sites == Sinks.load("sinks.json").sites


def test_the_patches_of_images_are_mapped() -> None:
    torch.manual_seed(0)
    model, batch = build("vit")
    pixels = torch.randn(3, *batch["pixel_values"].shape[1:])
    found = anisoscope.sinks(model, [{"pixel_values": pixels}])
    assert [patch.site for patch in found.patches] == [entry.site for entry in found.sites]
    with torch.no_grad(), anisoscope.capture(model, ["resid.1"]) as cache:
        model(pixel_values=pixels)
    norms = cache["resid.1"].double().norm(dim=-1)[:, 1:] / found.at("resid.1").median  # without the class token
    patch = next(each for each in found.patches if each.site == "resid.1")
    assert (patch.height, patch.width, patch.images) == (2, 2, 3)
    assert np.allclose(patch.mean, norms.mean(0))
    assert np.allclose(patch.largest, norms.amax(0))
    rows = [row for row in found.patch_rows() if row["site"] == "resid.1"]
    assert rows[2] == {"site": "resid.1", "row": 1, "column": 0, "mean": patch.mean[2], "largest": patch.largest[2]}
    spec = patch_map(found.patch_rows()).to_dict()
    assert spec["facet"]["field"] == "site"
    with pytest.raises(InputError, match="no patches"):
        patch_map([])


def test_no_grid_is_made_up_for_sequences_that_have_none() -> None:
    assert patch_grid(196, 1.0) == (14, 14)
    assert patch_grid(257, 1.0) == (16, 16)
    assert patch_grid(3, 7.0) is None
