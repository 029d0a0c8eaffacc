"""Switches and experiments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.lab.experiment import Experiment, changed


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"atention": "softmax"}, "Did you mean 'attention"),
        ({"attention": "sofmax"}, "choose one of softmax"),
        ({"layers": "many"}, "expected int"),
        ({"causal": "maybe"}, "expected bool"),
        ({"kind": "decodr"}, "Did you mean 'decoder"),
        ({"masking": 1.5}, "from 0 to 1"),
        ({"steps": 0}, "from 1 to"),
        ({"project": "tangent", "rank": 500}, "smaller rank"),
        ({"kind": "encoder", "objective": "next"}, "sees its next token"),
    ],
)
def test_wrong_switches_are_refused_with_the_reason(switches: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        changed(Experiment(), switches)


def test_switches_as_text_get_their_type() -> None:
    made = changed(Experiment(), {"layers": "3", "dropout": "0", "tied": "False", "mlp": "none", "text": "zipf"})
    assert (made.model.layers, made.model.dropout, made.model.tied) == (3, 0.0, False)
    assert isinstance(made.model.dropout, float)
    different = {name: value for name, value in made.flat().items() if value != Experiment().flat()[name]}
    assert different == {"layers": 3, "tied": False, "text": "zipf"}
    assert Experiment.from_json(json.loads(json.dumps(made.to_json()))) == made
