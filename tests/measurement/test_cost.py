"""The estimated memory and disk are those that a measurement takes, within 30 %."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.hooks import find_layout
from anisoscope.measurement.cost import _holdings, estimate_cost
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.model_data import open_for, read_data
from anisoscope.measurement.request import Request
from anisoscope.stats.cloud import to_arrays
from anisoscope.stats.scratch import Room, bytes_of
from tests.sweep_folders import documents

OPTIONS: dict[str, Any] = {"tokens": 4000, "window": 32, "batch": 4, "sample": 512}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documents(tmp_path_factory.mktemp("corpus") / "text.jsonl")


def within(estimate: float, actual: float) -> bool:
    return actual / 1.3 <= estimate <= actual * 1.3


@pytest.mark.parametrize("sites", [["embed", "resid", "final"], ["resid", "q", "k"]])
@pytest.mark.parametrize("room", [Room(), Room(blocks=0, open=0)], ids=["in memory", "in files"])
def test_statistics_take_the_bytes_that_were_estimated(
    folder: Path, corpus: Path, tmp_path: Path, sites: list[str], room: Room
) -> None:
    request = Request.of(**OPTIONS, sites=sites, text=corpus, metrics=["isoscore", "two_nn"])
    opened = open_for(folder, request)
    assert opened is not None
    first, batches = peek(read_data(opened, request))
    layout = find_layout(opened.model, first_item(first, device_of(opened.model)))
    limit = engine_of(opened.model, layout, request, room, tmp_path / "first")
    limit.run([first])
    tokens, holdings = _holdings(limit, request, batches)
    whole = engine_of(opened.model, layout, request, room, tmp_path / "whole")
    whole.run(read_data(opened, request), 4000)
    assert tokens == whole.tokens
    collectors = list(whole._collectors.clouds.values())
    closed = [block.stats for collector in collectors for block in collector._closed]
    in_memory = sum(collector._open_bytes() for collector in collectors)
    in_memory += sum(bytes_of(to_arrays(stats).values()) for stats in closed if isinstance(stats, dict))
    in_files = sum(file.stat().st_size for file in (tmp_path / "whole").rglob("*.safetensors"))
    if room.open:
        assert within(holdings.memory, in_memory), (holdings.memory, in_memory)
        assert holdings.scratch == in_files == 0
    else:
        assert within(holdings.scratch, in_files), (holdings.scratch, in_files)
        assert holdings.memory == in_memory == 0


def engine_of(model: Any, layout: Any, request: Request, room: Room, scratch: Path) -> Engine:
    scratch.mkdir()
    engine = Engine(model, layout, request, expected=4000, scratch=scratch)
    engine.room = Room(room.blocks, room.open, scratch)
    engine._collectors.options = engine._pass_options(engine.extremes)
    return engine


@pytest.mark.parametrize("keep", [False, True])
def test_the_run_folder_has_the_size_that_was_estimated(folder: Path, corpus: Path, tmp_path: Path, keep: bool) -> None:
    options: dict[str, Any] = {**OPTIONS, "text": corpus, "keep_statistics": keep, "out": tmp_path / "run"}
    options["metrics"] = ["isoscore", "mean_cosine", "two_nn", "outlier_dimensions"]
    estimate = estimate_cost(folder, **options)
    assert not (tmp_path / "run").exists()
    anisoscope.measure(folder, **options)
    actual = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert within(estimate.folder, actual), (estimate.folder, actual)


def test_the_width_is_that_of_the_stream(folder: Path, corpus: Path) -> None:
    cost = estimate_cost(folder, text=corpus, **OPTIONS)
    opened = open_for(folder, Request.of())
    assert opened is not None
    config: Any = opened.model.config
    assert cost.width == config.hidden_size
    assert cost.folder == 0, "without --out nothing is kept"
