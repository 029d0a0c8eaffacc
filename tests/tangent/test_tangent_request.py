"""The request of a tangent test: shared options, two sides, settings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.measurement.request import OPTIONS, TANGENT_DEFAULTS, TANGENT_HELP, TANGENT_OPTIONS
from anisoscope.tangent.tangent_request import (
    digest_of_counts,
    opening,
    read_sides,
    require_two_sides,
    tangent_request,
    tangent_settings,
)


def test_options_have_the_defaults_of_measure_unless_declared() -> None:
    shared = inspect.signature(anisoscope.tangent_test).parameters
    for name in TANGENT_OPTIONS:
        assert shared[name].default == TANGENT_DEFAULTS.get(name, OPTIONS[name].default)
    assert all(value != OPTIONS[name].default for name, value in TANGENT_DEFAULTS.items())
    assert {*TANGENT_HELP} <= {*TANGENT_OPTIONS}


def test_a_request_has_the_defaults_of_a_tangent_test() -> None:
    request = tangent_request({"tokens": 100})
    assert (request.statistics.tokens, request.data.batch, request.sites.sites) == (100, 4, ("resid",))


@pytest.mark.parametrize(
    ("options", "fit", "test", "message"),
    [
        ({}, None, None, "Pass text, or fit and test"),
        ({}, [1], None, "Pass text, or fit and test"),
        ({"text": "a.txt"}, [1], [2], "not both"),
        ({"text": "a.txt", "tokens": 64, "window": 65}, None, None, "64 tokens to fit on fill no window of 65"),
        ({"text": "a.txt", "tokens": 511}, None, None, "window of 512"),
    ],
)
def test_a_request_without_two_sides_is_refused(options: dict[str, Any], fit: Any, test: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_two_sides(tangent_request(options), fit, test)


def test_one_window_per_side_is_enough() -> None:
    require_two_sides(tangent_request({"text": "a.txt", "tokens": 64, "window": 64}), None, None)
    require_two_sides(tangent_request({"text": "a.txt", "tokens": None}), None, None)


def test_a_bare_module_reads_no_text() -> None:
    with pytest.raises(InputError, match="bare module"):
        read_sides(None, tangent_request({"text": "a.txt"}))


def test_other_models_are_opened_without_the_revision() -> None:
    options = opening(tangent_request({"revision": "step10", "device": "cpu"}))
    assert "revision" not in options
    assert options["device"] == "cpu"


def test_settings_name_what_the_numbers_depend_on() -> None:
    request = tangent_request({"text": Path("a.txt"), "device": "cpu", "out": "runs/t"})
    settings = tangent_settings(request, "model", {"loss": None, "earlier": Path("old")})
    assert settings["model"] == "model"
    assert settings["data"] == "a.txt"
    assert settings["earlier"] == "old"
    assert not {"device", "out", "overwrite", "text"} & set(settings)


def test_counts_are_compared_by_their_contents() -> None:
    assert digest_of_counts({1: 2, 3: 4}) == digest_of_counts({3: 4, 1: 2})
    assert digest_of_counts({1: 2}) != digest_of_counts({1: 3})
    assert digest_of_counts(None) is None
