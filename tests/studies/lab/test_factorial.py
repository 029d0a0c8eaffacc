"""Factorial designs."""

from __future__ import annotations

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.factorial import factorial
from anisoscope.studies.lab.twins import over_seeds


def test_every_combination_of_values_is_one_cell() -> None:
    design = factorial(Experiment(), ["attention=softmax,uniform", "text=topics;zipf:exponent=1.2,copy=0.5"])
    zipf = "text-zipf_exponent=1.2,copy=0.5"
    assert list(design.cells) == ["base", zipf, "attention-uniform", f"attention-uniform+{zipf}"]
    both = design.cells[f"attention-uniform+{zipf}"]
    assert (both.model.attention, both.recipe.text) == ("uniform", "zipf:exponent=1.2,copy=0.5")
    assert all(design.cells[name] == changed(Experiment(), levels) for name, levels in design.levels.items())
    assert list(over_seeds(design.cells, 2))[4:6] == ["base-seed-1", f"{zipf}-seed-1"]


def test_a_single_value_is_compared_with_that_of_the_base() -> None:
    base = changed(Experiment(), {"kind": "encoder", "tied": False})
    design = factorial(base, ["kind=causal-masked", "tied=true", "mlp=64"])
    assert design.values == {"kind": ["encoder", "causal-masked"], "tied": ["false", "true"], "mlp": ["none", "64"]}
    assert len(design.cells) == 8
    assert design.cells["base"] == base


def test_values_are_the_listed_ones_in_their_order_and_each_once() -> None:
    design = factorial(Experiment(), ["attention=uniform,sigmoid,uniform"])
    assert design.values == {"attention": ["uniform", "sigmoid"]}
    assert list(design.cells) == ["attention-uniform", "attention-sigmoid"]


def test_the_levels_of_an_experiment_do_not_depend_on_its_seed() -> None:
    design = factorial(changed(Experiment(), {"seed": 4}), ["norm=layer,rms", "width=64"])
    for name, experiment in over_seeds(design.cells, 2).items():
        assert design.levels_of(experiment) == design.levels[name.removesuffix("-seed-5")]
    with pytest.raises(InputError, match="not part of this design"):
        design.levels_of(changed(Experiment(), {"norm": "rms", "width": 32}))


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        (["attention=softmax,uniform", "attention=sigmoid"], "attention is given twice"),
        (["kind=decoder,causal-masked", "objective=next,masked"], "kind and objective set the same thing"),
        (["seed=0,1"], "Use --seeds"),
        (["norm_at=pre"], "norm_at is pre in all models"),
        (["attention=nope"], "choose one of"),
        (["attention"], "Write name=value"),
    ],
)
def test_a_design_that_cannot_be_evaluated_is_refused(switches: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        factorial(Experiment(), switches)
