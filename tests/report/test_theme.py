"""The theme of charts, and saving them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from anisoscope.errors import InputError
from anisoscope.report.charts import save_chart
from anisoscope.report.theme import COLOURS, config
from anisoscope.store.run import Run
from tests import report_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.make_run(tmp_path_factory.mktemp("charts") / "exp", runs.every_shape())


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png", "html", "json"])
def test_a_figure_is_written_in_every_format(run: Run, tmp_path: Path, suffix: str) -> None:
    written = save_chart(run.plot("two_nn"), tmp_path / f"fig.{suffix}")
    head = written.read_bytes()[:2048]
    assert {"pdf": b"%PDF", "svg": b"<svg", "png": b"PNG", "html": b"<!DOCTYPE", "json": b"{"}[suffix] in head


def test_a_figure_has_ink_in_the_palette(run: Run, tmp_path: Path) -> None:
    image = Image.open(save_chart(run.plot("spectral_anisotropy"), tmp_path / "fig.png", scale=1)).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 20) or []}
    assert tuple(int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_dark_and_light_differ_in_background_and_hues() -> None:
    light, dark = config(), config(dark=True)
    assert light["background"] != dark["background"]
    assert not set(light["range"]["category"][:4]) & set(dark["range"]["category"][:4])


def test_a_figure_without_a_folder_or_format_is_refused(run: Run, tmp_path: Path) -> None:
    chart = run.plot("two_nn")
    with pytest.raises(InputError, match="must end in"):
        save_chart(chart, tmp_path / "fig.gif")
    with pytest.raises(InputError, match="create it first"):
        save_chart(chart, tmp_path / "none" / "fig.png")
