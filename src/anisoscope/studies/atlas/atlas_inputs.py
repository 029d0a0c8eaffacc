"""Make the input of a domain: a file of texts, or a folder of images or recordings, from packages or by sampling."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.data.sample_text import SAMPLE
from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from anisoscope.studies.atlas.atlas_registry import AtlasInput, Registry
from anisoscope.studies.atlas.builders import model_folder, unpacked
from anisoscope.studies.atlas.formula_images import draw_formulas
from anisoscope.studies.atlas.music_words import score_texts
from anisoscope.studies.atlas.receptor_words import receptor_texts

_SUFFIXES = {"text": ".jsonl", "tables": ".safetensors", "images": "", "audio": ""}


def input_source(item: AtlasInput, registry: Registry, cache: Path) -> str:
    """Return the source of an input for `measure`; it is made in the cache if it is not there yet."""
    if item.build == "topics":
        return SAMPLE
    target = cache / "inputs" / (item.name + _SUFFIXES[item.kind])
    if target.exists():
        return str(target)
    scratch = target.with_name(item.name + "-unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "made").mkdir(parents=True)
    files = unpacked(item.archives, cache, scratch / "files")
    made = scratch / "made"
    if item.kind == "text":
        made = made / "texts.jsonl"
        options = dict(item.options)
        if item.build == "sampled":
            options["folder"] = model_folder(registry.models[options.pop("model")], cache)
        texts = TEXT_BUILDERS[item.build](files, **options)
        made.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
    elif item.kind == "tables":
        made = made / "tables.safetensors"
        save_file(drawn_tables(files, **item.options), made)
    else:
        MEDIA_BUILDERS[item.build](files, made, **item.options)
    made.rename(target)
    shutil.rmtree(scratch)
    return str(target)


def texts_of_files(
    files: list[Path],
    *,
    count: int,
    least: int = 400,
    most: int = 2000,
    pattern: str = r"\n\s*\n",
    encoding: str = "utf-8",
) -> Iterable[str]:
    """Return documents from plain files: pieces between matches of a pattern, joined until they are long enough.

    The documents are taken in turns from the files, so that every file has its share.
    """
    by_file = [_documents(file.read_text(encoding, "replace"), pattern, least, most) for file in files]
    turns = [document for row in zip(*by_file, strict=False) for document in row]
    return turns[:count]


def _documents(text: str, pattern: str, least: int, most: int) -> list[str]:
    documents, current = [], ""
    for piece in re.split(pattern, text):
        piece = re.sub(r"\s+", " ", piece).strip()
        if not piece:
            continue
        current = f"{current} {piece}".strip()
        if len(current) >= least:
            documents.append(current[:most])
            current = ""
    return documents


def column_of_files(files: list[Path], *, column: str, count: int) -> Iterable[str]:
    """Return the different values of a column of parquet files."""
    import pandas as pd

    frames = [pd.read_parquet(file, columns=[column]) for file in files]
    return pd.concat(frames)[column].dropna().astype(str).drop_duplicates().head(count).tolist()


def sampled_texts(
    files: list[Path],
    *,
    folder: Path,
    prompts: list[str],
    count: int,
    tokens: int,
    seed: int = 0,
    stop: str = "",
    drop: str = "",
) -> Iterable[str]:
    """Return texts that a decoder writes itself, at temperature 1, after each of the prompts in turn.

    Args:
        files: Not used; texts come from the model.
        folder: The model.
        prompts: Beginnings.
        count: Texts in all.
        tokens: Longest text.
        seed: Of the draws.
        stop: The token that ends a text.
        drop: Pattern of what is removed from a text, such as a prompt.
    """
    opened = open_model(folder, head=True)
    tokenizer: Any = opened.processor
    end = tokenizer.convert_tokens_to_ids(stop) if stop else tokenizer.eos_token_id
    texts = []
    torch.manual_seed(seed)
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        ids = ids[:, :-1] if ids[0, -1] == end else ids  # a template may end every text
        many = ids.repeat(-(-count // len(prompts)), 1)
        model: Any = opened.model
        with torch.no_grad():
            written = model.generate(
                many,
                attention_mask=torch.ones_like(many),
                do_sample=True,
                top_k=0,
                max_length=tokens,
                eos_token_id=end,
                pad_token_id=end,
            )
        for row in written.tolist():
            body = row[: row.index(end, ids.shape[1])] if end in row[ids.shape[1] :] else row
            text = tokenizer.decode(body, skip_special_tokens=not stop)
            texts.append(re.sub(drop, "", text.replace(" ", "") if stop else text).strip())
    if not any(texts):
        raise InputError(f"{folder} wrote no text. Check its tokenizer.")
    return [text for text in texts if text]


def crops_of_images(files: list[Path], folder: Path, *, size: int, per_image: int, seed: int = 0) -> None:
    """Write square cut-outs of photographs, drawn with a seed: each is half to all of the shorter side."""
    from PIL import Image

    generator = torch.Generator().manual_seed(seed)
    for file in files:
        with Image.open(file) as stored:
            image = stored.convert("RGB")
        for number in range(per_image):
            u, v, w = torch.rand(3, generator=generator).tolist()
            side = int(min(image.size) * (0.5 + 0.5 * u))
            left, top = int(v * (image.width - side)), int(w * (image.height - side))
            crop = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
            crop.save(folder / f"{file.stem}-{number:02}.png")


def copied_media(files: list[Path], folder: Path) -> None:
    """Copy recordings or images as they are."""
    for number, file in enumerate(files):
        shutil.copyfile(file, folder / f"{number:03}-{file.name}")


def drawn_tables(files: list[Path], *, rows: int, draws: int, features: int, seed: int = 0) -> dict[str, Tensor]:
    """Return draws from tables whose last column is the class, in random order; half the labels are hidden.

    Columns are standardised by the labelled rows and scaled by the number of features, as TabPFN was trained.

    Returns:
        `table` (draws, rows, features), `labels` (draws, rows) with -1 where a label is hidden, and `truth`.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    tables, labels, truth = [], [], []
    for number in range(draws):
        file = files[number % len(files)]
        data = np.genfromtxt(file, delimiter=",", skip_header=0 if file.suffix == ".gz" else 1)
        chosen = data[generator.permutation(len(data))[:rows]]
        values, classes = chosen[:, :-1], chosen[:, -1].astype(int)
        values = values[:, generator.permutation(values.shape[1])]
        seen = values[: rows // 2]
        values = ((values - seen.mean(0)) / (seen.std(0) + 1e-6)).clip(-10, 10)
        filled = np.zeros((rows, features))
        filled[:, : values.shape[1]] = values * (features / values.shape[1])
        tables.append(filled)
        truth.append(classes)
        labels.append(np.where(np.arange(rows) < rows // 2, classes, -1))
    return {
        "table": torch.tensor(np.stack(tables), dtype=torch.float32),
        "labels": torch.tensor(np.stack(labels)),
        "truth": torch.tensor(np.stack(truth)),
    }


TEXT_BUILDERS: dict[str, Callable[..., Iterable[str]]] = {
    "files": texts_of_files,
    "column": column_of_files,
    "sampled": sampled_texts,
    "receptors": receptor_texts,
    "scores": score_texts,
}
MEDIA_BUILDERS: dict[str, Callable[..., None]] = {
    "crops": crops_of_images,
    "copies": copied_media,
    "formulas": draw_formulas,
}
