"""Images are read, resized and scaled; unreadable ones are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisoscope.data.batches import model_batches
from anisoscope.data.images import image_batches
from anisoscope.data.token_table import table_of_length
from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "pictures")
    draw = np.random.default_rng(0)
    for n, mode in enumerate(["RGB", "L", "RGBA"]):
        Image.fromarray(draw.integers(0, 256, (20, 30, 3), dtype=np.uint8)).convert(mode).save(folder / f"{n}.png")
    return folder


def test_images_without_a_processor_are_resized_and_scaled(pictures: Path) -> None:
    batches = list(image_batches(None, pictures, batch=2, size=(8, 12)))
    assert [tuple(b.inputs["pixel_values"].shape) for b in batches] == [(2, 3, 8, 12), (1, 3, 8, 12)]
    with Image.open(pictures / "0.png") as image:
        resized = np.asarray(image.convert("RGB").resize((12, 8), Image.Resampling.BICUBIC), dtype=np.float64)
    expected = (resized / 255 - 0.5) / 0.5  # (h, w, c)
    assert np.allclose(batches[0].inputs["pixel_values"][0].permute(1, 2, 0).numpy(), expected, atol=1e-6)
    assert [b.document.flatten().tolist() for b in batches] == [[0, 1], [2]]
    assert {b.unit for b in batches} == {"images"}
    assert all((b.token == -1).all() and b.counts.all() for b in batches)


def test_an_unreadable_image_is_named(pictures: Path) -> None:
    (pictures / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"1\.png is not a readable image"):
        list(image_batches(None, pictures))


def test_a_vision_model_reads_a_folder_of_images(tmp_path: Path, pictures: Path) -> None:
    processor = made.hf.ViTImageProcessor(size={"height": 16, "width": 16})
    for folder in (
        made.save(tmp_path / "vit", made.hf.ViTModel(made.vit_config()), processor),
        made.save(tmp_path / "plain", made.hf.ViTModel(made.vit_config())),
    ):
        opened = open_model(folder)
        assert opened.modality == "image"
        (batch,) = model_batches(opened, pictures)
        states = opened.model(**batch.inputs).last_hidden_state  # (3, 5, 16): four patches and [CLS]
        assert table_of_length(batch, states.shape[1]).counts.sum() == 15
