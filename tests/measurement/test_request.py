"""One request: everything about options is derived from its fields."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.measurement.cost import estimate_cost
from anisoscope.measurement.measure_model import MEASURE_OPTIONS
from anisoscope.measurement.request import (
    GROUP_OF,
    OPTIONS,
    TANGENT_DEFAULTS,
    Request,
    accepts,
    differences,
    shared_options,
)
from anisoscope.stats.moments import Moments
from anisoscope.sweep import sweep


def test_no_group_has_more_than_eight_fields_and_every_field_is_documented() -> None:
    for group in fields(Request):
        assert 1 <= len(fields(group.default)) <= 8, group.name  # type: ignore[arg-type]
    assert all(option.metadata["help"].endswith((".", ")")) for option in OPTIONS.values())
    assert OPTIONS.keys() == GROUP_OF.keys()  # no name in two groups


def test_flat_options_and_a_request_are_two_forms_of_one_thing() -> None:
    request = Request.of(text="a.txt", tokens=99, sites=["resid"], device="cpu", keep_blocks=True)
    assert Request.of(**request.flat()) == request
    assert request.having(tokens=100).statistics.tokens == 100
    assert request.having(tokens=100).data == request.data


def test_an_unknown_option_is_refused_with_its_nearest_name() -> None:
    with pytest.raises(InputError, match=r"tokenz.*tokens"):
        Request.of(tokenz=3)
    with pytest.raises(InputError, match=r"tokenz.*tokens"):
        anisoscope.measure("model", tokenz=3)
    with pytest.raises(InputError, match="precise"):  # an option of vectors
        anisoscope.measure("model", precise=True)


def test_public_functions_show_their_options_in_signature_and_help() -> None:
    for function, names in (
        (anisoscope.measure, MEASURE_OPTIONS),
        (estimate_cost, MEASURE_OPTIONS),
        (sweep, shared_options()),
    ):
        shown = inspect.signature(function).parameters
        assert set(names) <= set(shown)
        assert all(shown[name].default == OPTIONS[name].default for name in names)
        assert all(f"{name}: {OPTIONS[name].metadata['help']}" in (function.__doc__ or "") for name in names)
        assert "{options}" not in (function.__doc__ or "")


def test_a_new_option_reaches_a_function_without_further_work() -> None:
    @accepts("tokens", "seed")
    def function(x: int, **options: object) -> dict[str, object]:
        """Do something.

        Args:
            x: A number.
            {options}
        """
        return options

    assert function(1, tokens=5) == {"tokens": 5}
    assert list(inspect.signature(function).parameters) == ["x", "tokens", "seed"]


# Options of a function that share a name with an option of `measure`, and differ on purpose.
OWN_DEFAULTS = {
    **{("tangent_test", name): "declared in TANGENT_DEFAULTS" for name in TANGENT_DEFAULTS},
    **{("fit_frames", name): "declared in TANGENT_DEFAULTS" for name in ("sites", "sample")},
    ("measure_rows", "rows"): "the rows themselves",
    ("Tracker", "sites"): "attention patterns too, if the model shows them",
    ("Tracker", "sample"): "a probe must be fast",
    ("Tracker", "weights"): "names of parameters whose gradients are measured",
    ("Tracker", "out"): "required: a training is always written",
}
FUNCTIONS: dict[str, Any] = {
    "measure": anisoscope.measure,
    "measure_rows": anisoscope.measure_rows,
    "sweep": sweep,
    "tangent_test": anisoscope.tangent_test,
    "fit_frames": anisoscope.fit_frames,
    "Tracker": anisoscope.Tracker,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_option_has_one_default_everywhere_unless_declared(function: str) -> None:
    for name, parameter in inspect.signature(FUNCTIONS[function]).parameters.items():
        if name in OPTIONS:
            differs = parameter.default != OPTIONS[name].default
            assert differs == ((function, name) in OWN_DEFAULTS), name


def test_a_default_and_a_help_text_of_its_own_reach_signature_and_documentation() -> None:
    @accepts("tokens", "seed", defaults={"tokens": 5}, help={"tokens": "How many."})
    def count(**options: Any) -> None:
        """Count.

        Args:
            {options}
        """

    assert inspect.signature(count).parameters["tokens"].default == 5
    assert "tokens: How many." in (count.__doc__ or "")
    assert OPTIONS["seed"].metadata["help"] in (count.__doc__ or "")


@pytest.mark.parametrize("clean", [False, True], ids=["as written", "without indentation, as Python 3.13 stores it"])
def test_options_line_up_with_the_other_arguments(clean: bool) -> None:
    def count(first: int, **options: Any) -> None:
        """Count.

        Args:
            first: Where to start.
            {options}

        Returns:
            Nothing.
        """

    if clean:
        count.__doc__ = inspect.cleandoc(count.__doc__ or "")
    lines = (inspect.getdoc(accepts("tokens", "seed")(count)) or "").splitlines()
    entries = lines[lines.index("Args:") + 1 : lines.index("Returns:") - 1]
    assert [line.split(":")[0] for line in entries] == ["    first", "    tokens", "    seed"]


def test_settings_are_plain_and_hold_only_what_changes_the_numbers() -> None:
    request = Request.of(device="cuda", out="runs/a", tokens=10, metrics=["isoscore", anisoscope.metrics.mean_cosine])
    settings = request.settings()
    assert settings["metrics"] == ["isoscore", "mean_cosine"]
    assert not {"device", "out", "overwrite", "trust_remote_code"} & set(settings)
    assert Request.of(device="cpu").settings() == Request.of(out="elsewhere").settings()
    assert Request.of(documents=np.arange(3)).settings()["documents"] == "ndarray"


def test_settings_hold_the_name_and_version_of_an_own_metric() -> None:
    def of_version(version: int) -> Any:
        @anisoscope.metric(Moments, low=0, high=1, keeps=set(), paper="mine", version=version)
        def own(moments: Moments) -> float:
            """A number."""
            return 0.5

        return own

    settings = [Request.of(metrics=[of_version(version)]).settings() for version in (1, 2)]
    assert json.loads(json.dumps(settings)) == settings  # a run stores them as JSON
    assert [each["metrics"] for each in settings] == [["own"], ["own (version 2)"]]


def test_a_text_instead_of_a_list_of_sites_is_refused() -> None:
    with pytest.raises(InputError, match=r"sites must be a list of names, such as \['resid'\]"):
        Request.of(sites="resid")


def test_differences_name_both_values() -> None:
    before, after = Request.of(tokens=4096).settings(), Request.of(tokens=8192, sites=["resid"]).settings()
    assert differences(before, after) == [
        "sites (embed,resid,final before, resid now)",
        "tokens (4096 before, 8192 now)",
    ]
    assert differences(before, before) == []


def test_the_keywords_of_readers_follow_the_modality() -> None:
    assert Request.of(audio="clips", seconds=2.0).reading() == {"seconds": 2.0}
    assert Request.of(images="photos").reading() == {}
    assert Request.of(text="a", window=7).reading()["window"] == 7
    assert Request.of(text="a").source() == ("text", "a")
    assert Request().source() is None


def test_an_empty_list_is_named_in_a_difference() -> None:
    assert differences({"sites": []}, {"sites": ["resid"]}) == ["sites (none before, resid now)"]
