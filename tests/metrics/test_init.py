"""The catalogue: finding metrics by name, as attributes, and from other packages."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import anisoscope
from anisoscope import metrics
from anisoscope.errors import InputError
from anisoscope.metrics.metric import Metric
from anisoscope.stats.moments import Moments


@metrics.metric(Moments, low=0, high=1e300, keeps={"rotation", "shift"}, paper="anisoscope")
def plugged_variance(moments: Moments) -> float:
    """Total variance, from another package."""
    return float(moments.trace) / moments.n


def install(monkeypatch: pytest.MonkeyPatch, *plugins: Any) -> None:
    entries = [SimpleNamespace(load=lambda plugin=plugin: plugin) for plugin in plugins]
    monkeypatch.setattr(metrics, "entry_points", lambda *, group: entries)


def test_names_from_a_generator_are_found() -> None:
    assert [m.name for m in metrics.find(name for name in ("two_nn", "isoscore"))] == ["two_nn", "isoscore"]


def test_a_generator_with_an_unknown_name_raises() -> None:
    with pytest.raises(InputError, match="isoscor"):
        metrics.find(name for name in ("isoscore", "isoscor"))


def test_a_metric_of_another_package_is_in_the_catalogue_and_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugged_variance)
    assert metrics.find(["plugged_variance"]) == [plugged_variance]
    assert metrics.plugged_variance is plugged_variance
    assert "plugged_variance" in dir(metrics)
    assert metrics.plugged_variance([[0.0], [2.0]]) == 1.0


def test_a_module_of_metrics_can_be_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(__name__)
    module.plugged_variance = plugged_variance  # type: ignore[attr-defined]
    module.isoscore = metrics.isoscore  # type: ignore[attr-defined]  # imported, so not its own
    install(monkeypatch, module)
    assert metrics.plugged_variance is plugged_variance


def test_without_its_package_a_plugged_metric_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="plugged_variance"):
        _ = metrics.plugged_variance
    assert "plugged_variance" not in dir(metrics)


def test_two_metrics_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, metrics.isoscore)
    with pytest.raises(InputError, match="isoscore"):
        metrics.catalogue()


def test_every_built_in_metric_is_an_attribute() -> None:
    for name, metric in metrics.catalogue().items():
        assert getattr(metrics, name) is metric
        assert isinstance(metric, Metric)
    assert set(metrics.catalogue()) <= set(dir(metrics))


def test_completion_offers_only_public_names() -> None:
    assert not {"Any", "TYPE_CHECKING", "import_module", "sys"} & {*dir(anisoscope), *dir(metrics)}
    assert {"measure", "metrics", "Run", "__version__"} <= set(dir(anisoscope))


def test_an_unknown_metric_name_suggests_similar_ones() -> None:
    with pytest.raises(InputError, match="Did you mean 'isoscore"):
        metrics.find(["isoscor"])
