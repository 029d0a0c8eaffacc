"""Batches of images."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, group_consecutive, make_batch, require_positive, table_without_ids
from anisoscope.errors import InputError, first_line
from anisoscope.extras import needs
from anisoscope.models.sources import named_files
from anisoscope.store.files import wrong_content

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
_MAX_PIXELS = 1 << 26  # a few kilobytes can expand to gigabytes; models use a few hundred pixels per side
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_batches(
    processor: Any,
    source: str | Path | Iterable[str | Path],
    *,
    batch: int = 8,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
) -> Iterator[Batch]:
    """Read images; each image is one document.

    Only the model knows its number of patches, so the tables have T = 1: see `table_of_length`.

    Args:
        processor: the model's image processor. Without one, images are resized to `size` and their values v in [0, 1]
            become (v - 0.5) / 0.5.
        source: a folder, a file or a list of files.
        batch: images per batch.
        size: one side, or height and width, in pixels.
        channels: 1, 3 or 4.
    """
    require_positive(batch=batch)
    files = named_files(source, IMAGE_SUFFIXES)
    return _batches(processor, files, batch, (size, size) if isinstance(size, int) else tuple(size), channels)


def _batches(processor: Any, files: list[Path], batch: int, size: tuple[int, ...], channels: int) -> Iterator[Batch]:
    numbers = count()
    for group in group_consecutive(files, batch, key=lambda file: 0):
        images = [_image(file, channels) for file in group]
        if processor is None:
            inputs = {"pixel_values": torch.stack([_plain_pixels(image, size) for image in images])}
        else:
            inputs = dict(processor(images=images, return_tensors="pt"))
        document = torch.tensor([next(numbers) for _ in group])  # (b,)
        table = table_without_ids(document, torch.ones(len(group), 1, dtype=torch.bool))
        yield make_batch(table, inputs, "images")


def _image(file: Path, channels: int) -> Any:
    with needs("vision", "reading images"):
        from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on images that are refused below, and on unusual metadata
            # Known formats only: others (PostScript) can contain programs that would run.
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise ValueError(f"{image.width} × {image.height} pixels; at most {_MAX_PIXELS:,} are supported")
                # Cameras store the orientation separately from the pixels.
                return ImageOps.exif_transpose(image).convert(_MODES.get(channels, "RGB"))
    except Exception as error:  # damaged and crafted images raise many kinds of errors
        if reason := wrong_content(file):
            raise InputError(f"{file}: {reason}") from error
        raise InputError(f"{file} is not a readable image ({first_line(error)}). Remove or replace it.") from error


def _plain_pixels(image: Any, size: tuple[int, ...]) -> Tensor:
    import numpy as np
    from PIL import Image

    height, width = size
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255  # (h, w[, c])
    return torch.from_numpy(pixels).reshape(height, width, -1).permute(2, 0, 1) * 2 - 1  # (c, h, w)
