"""Images into batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, item_table, require_positive, runs, with_inputs
from anisoscope.errors import InputError, first_line
from anisoscope.models.sources import named_files
from anisoscope.store.files import impostor

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
_PIXELS = 1 << 26  # a few kilobytes can claim gigabytes of one colour; models see a few hundred pixels a side
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_batches(
    processor: Any,
    source: str | Path | Iterable[str | Path],
    *,
    batch: int = 8,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
) -> Iterator[Batch]:
    """The images of a folder or a list of files, `batch` at a time; every image is a document.

    Without a processor an image is resized to `size` (a side, or height and width) and its values v in [0, 1] become
    (v - 0.5) / 0.5. The model alone knows its number of patches, so the tables have T = 1: see `table_at`.
    """
    require_positive(batch=batch)
    files = named_files(source, IMAGES)
    return _batches(processor, files, batch, (size, size) if isinstance(size, int) else tuple(size), channels)


def _batches(processor: Any, files: list[Path], batch: int, size: tuple[int, ...], channels: int) -> Iterator[Batch]:
    numbers = count()
    for group in runs(files, batch, key=lambda file: 0):
        images = [_image(file, channels) for file in group]
        if processor is None:
            inputs = {"pixel_values": torch.stack([_plain_pixels(image, size) for image in images])}
        else:
            inputs = dict(processor(images=images, return_tensors="pt"))
        document = torch.tensor([next(numbers) for _ in group])  # (b,)
        table = item_table(document, torch.ones(len(group), 1, dtype=torch.bool))
        yield with_inputs(table, inputs, "images")


def _image(file: Path, channels: int) -> Any:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on what we refuse below, and on odd metadata
            # Known formats only: others (PostScript) are read by programs that run what the file says.
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > _PIXELS:
                    raise ValueError(f"{image.width} × {image.height} pixels, of which at most {_PIXELS:,} are read")
                # Cameras store how the picture was held beside the pixels.
                return ImageOps.exif_transpose(image).convert(_MODES.get(channels, "RGB"))
    except Exception as error:  # damaged and crafted images raise dozens of kinds
        seen = f"{file}: {told}" if (told := impostor(file)) else f"{file} is not a readable image"
        raise InputError(f"{seen} ({first_line(error)}); remove or replace it") from error


def _plain_pixels(image: Any, size: tuple[int, ...]) -> Tensor:
    import numpy as np
    from PIL import Image

    height, width = size
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255  # (h, w[, c])
    return torch.from_numpy(pixels).reshape(height, width, -1).permute(2, 0, 1) * 2 - 1  # (c, h, w)
