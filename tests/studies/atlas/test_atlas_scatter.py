"""The scatter shows every model with its twin, on axes that hold all points, and no label covers another."""

from __future__ import annotations

import re
from dataclasses import replace

from anisoscope.studies.atlas.atlas_scatter import scatter_svg
from tests.studies.atlas.made_evidence import model

TINY = model("tiny", spectral_anisotropy=[0.2] * 5, two_nn=[8.0] * 5)


def numbers(svg: str, name: str, kind: str) -> list[float]:
    return [float(x) for x in re.findall(rf'<{kind}[^>]* {name}="([-0-9.]+)"', svg)]


def test_trained_points_are_filled_and_twins_are_hollow() -> None:
    svg = scatter_svg([TINY])
    assert svg.count('class="dot"') == 1 + 1  # and the legend
    assert svg.count('class="hollow"') == 1
    assert "tiny: dimension 8, share 0.2" in svg
    assert "tiny, untrained: dimension 0.1, share 0.1" in svg


def test_all_points_are_inside_the_picture() -> None:
    far = model("far", spectral_anisotropy=[0.9] * 5, two_nn=[150.0] * 5)
    svg = scatter_svg([TINY, far])
    assert all(0 < x < 900 for x in numbers(svg, "cx", "circle"))
    assert all(0 < y < 520 for y in numbers(svg, "cy", "circle"))


def test_a_model_in_the_same_place_has_no_second_label_at_the_same_spot() -> None:
    crowd = [replace(TINY, name=f"model-{i:02}") for i in range(12)]
    svg = scatter_svg(crowd)
    spots = re.findall(r'<text class="label" x="([0-9.]+)" y="([0-9.]+)" text-anchor="start">model', svg)
    assert 1 < len(spots) < 12  # some are left out, all have a tooltip
    assert len(set(spots)) == len(spots)
    assert svg.count("share 0.2</title>") == 12


def test_without_numbers_there_is_no_picture() -> None:
    assert scatter_svg([model("tiny", isoscore=[0.1] * 5)]) == ""
