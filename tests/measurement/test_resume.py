"""An interrupted pass is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.data.batches import model_batches
from anisoscope.errors import StoreError

Values = dict[tuple[Any, ...], float]


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


class Stop(Exception):
    """A process that ends in mid-pass, where nothing can be cleaned up."""


def _stopping(real: Any, after: int, with_what: BaseException) -> Any:
    def batches(*given: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(real(*given, **options)):
            if number == after:
                raise with_what
            yield batch

    return batches


@pytest.mark.parametrize("sites", [["resid"], ["resid", "pattern"]])
@pytest.mark.parametrize("how", [Stop(), KeyboardInterrupt()])
def test_an_interrupted_pass_resumes_to_the_same_numbers(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: list[str], how: BaseException
) -> None:
    names = ["mean_cosine", "spectral_anisotropy", "two_nn", *(["attention_entropy"] if "pattern" in sites else [])]
    request: dict[str, Any] = {"text": text, "tokens": 600, "window": 32, "batch": 2, "metrics": names, "sites": sites}
    request["batch_tokens"] = 128
    whole = anisoscope.measure(folder, **request, out=tmp_path / "whole")
    monkeypatch.setattr("anisoscope.measurement.resume._EVERY", -1.0)  # keep after every batch
    monkeypatch.setattr("anisoscope.measurement.resume._PRICE", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("anisoscope.measurement.measure_model.model_batches", _stopping(model_batches, 4, how))
        if isinstance(how, Stop):
            with pytest.raises(Stop):
                anisoscope.measure(folder, **request, out=tmp_path / "stopped")
        else:
            half = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
            assert half.info["interrupted"]
            assert values(half)  # what was seen is measured
    resumed = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
    assert values(resumed) == values(whole)
    assert len(list(resumed.records())) == len(list(whole.records()))
    assert not list((tmp_path / "stopped").glob("partial*"))


def test_a_complete_run_is_returned_and_another_request_is_refused(folder: Path, text: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"]}
    first = anisoscope.measure(folder, **request, out=tmp_path / "run")
    again = anisoscope.measure(folder, **request, out=tmp_path / "run")
    assert values(again) == values(first)
    with pytest.raises(StoreError, match="different: seed"):
        anisoscope.measure(folder, **request, seed=1, out=tmp_path / "run")
