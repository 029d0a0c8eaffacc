"""Inputs are made once, from the files of packages or by sampling, and are the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from anisoscope.data.sample_text import SAMPLE
from anisoscope.studies.atlas.atlas_inputs import (
    column_of_files,
    crops_of_images,
    drawn_tables,
    input_source,
    sampled_texts,
    texts_of_files,
)
from anisoscope.studies.atlas.atlas_registry import AtlasInput, Registry
from anisoscope.studies.atlas.receptor_words import receptor_texts
from tests import model_folders as made
from tests.studies.atlas.tiny_registry import tiny_model


def test_documents_are_long_enough_and_come_from_every_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n\n".join(f"{name} piece {i}" for i in range(40)))
    texts = list(texts_of_files([tmp_path / "a", tmp_path / "b"], count=4, least=30, most=60))
    assert [text[0] for text in texts] == ["a", "b", "a", "b"]
    assert all(30 <= len(text) <= 60 for text in texts)


def test_a_column_gives_different_values(tmp_path: Path) -> None:
    pd.DataFrame({"r": ["CC>>C", "CC>>C", "O>>O", None]}).to_parquet(tmp_path / "r.gzip")
    assert list(column_of_files([tmp_path / "r.gzip"], column="r", count=5)) == ["CC>>C", "O>>O"]


def test_a_model_writes_the_same_texts_every_time(tmp_path: Path) -> None:
    folder = made.gpt2(tmp_path / "gpt2")
    options: dict[str, Any] = {"folder": folder, "prompts": ["the", "a"], "count": 4, "tokens": 12}
    first = list(sampled_texts([], **options))
    assert first == list(sampled_texts([], **options))
    assert 2 <= len(first) <= 4
    assert first[0].startswith("the")


def test_receptors_become_words_of_their_loops(tmp_path: Path) -> None:
    genes = pd.DataFrame(
        {"id": ["TRBV9*01"], "organism": ["human"], "chain": ["B"], "region": ["V"], "cdrs": ["SG..H;FQ.;X;CA"]}
    )
    genes.to_csv(tmp_path / "genes.tsv", sep="\t")
    pairs = {"v_b_gene": ["TRBV9*01", "unknown", "TRBV9*01"], "cdr3_b_aa": ["CAF", "CAF", "CA*"]}
    pd.DataFrame(pairs).to_csv(tmp_path / "mira.csv")
    files = [tmp_path / "genes.tsv", tmp_path / "mira.csv"]
    words = "S.1.3.1 G.2.3.1 H.3.3.1 F.1.2.2 Q.2.2.2 C.1.3.3 A.2.3.3 F.3.3.3"
    assert list(receptor_texts(files, count=5, loops=[1, 2, 3])) == [words]
    assert len(list(receptor_texts(files, count=5, loops=[3]))) == 2  # the third loop needs no gene


def test_crops_are_square_and_drawn_with_a_seed(tmp_path: Path) -> None:
    Image.fromarray(np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3)).save(tmp_path / "cat.png")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        crops_of_images([tmp_path / "cat.png"], tmp_path / name, size=16, per_image=2)
    crops = sorted((tmp_path / "one").iterdir())
    for crop in crops:
        with Image.open(crop) as image:
            assert image.size == (16, 16)
    assert crops[0].read_bytes() == (tmp_path / "two" / crops[0].name).read_bytes()
    assert crops[0].read_bytes() != crops[1].read_bytes()


def test_tables_hide_half_of_the_labels_and_standardise_by_the_others(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((50, 3)) * 5 + 7
    rows = [",".join([*(f"{x:.3f}" for x in row), str(i % 3)]) for i, row in enumerate(values)]
    (tmp_path / "iris.csv").write_text("50,3,a,b,c\n" + "\n".join(rows))
    drawn = drawn_tables([tmp_path / "iris.csv"], rows=20, draws=2, features=6)
    assert drawn["table"].shape == (2, 20, 6)
    assert (drawn["labels"][:, :10] == drawn["truth"][:, :10]).all()
    assert (drawn["labels"][:, 10:] == -1).all()
    torch.testing.assert_close(drawn["table"][:, :10, :3].mean(1), torch.zeros(2, 3), atol=1e-4, rtol=0)
    assert drawn["table"][:, :, 3:].abs().max() == 0


def test_an_input_is_made_once(tmp_path: Path) -> None:
    model = made.gpt2(tmp_path / "models" / "tiny")
    options = {"model": "tiny", "prompts": ["the"], "count": 2, "tokens": 9}
    item = AtlasInput("own", "texts", "text", (), "sampled", options)
    registry = Registry({"tiny": tiny_model("tiny")}, {"own": item})
    path = Path(input_source(item, registry, tmp_path))
    assert [set(json.loads(line)) for line in path.read_text().splitlines()] == [{"text"}] * 2
    stamp = path.stat().st_mtime_ns
    assert input_source(item, registry, tmp_path) == str(path)
    assert path.stat().st_mtime_ns == stamp
    assert model.is_dir()


def test_the_common_text_needs_no_file(tmp_path: Path) -> None:
    item = AtlasInput("topics", "", "text", (), "topics", {})
    assert input_source(item, Registry({}, {"topics": item}), tmp_path) == SAMPLE
