"""What `measure` reads: a module with its tokenizer and texts, datasets, loaders and iterators of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import anisoscope
from anisoscope.errors import InputError
from anisoscope.measurement.model_data import open_for, with_data
from anisoscope.measurement.request import Request
from anisoscope.models.open import Opened, open_model
from tests import model_folders

NAMES = ["isoscore"]
TEXTS = [f"{model_folders.WORDS} number {number}" for number in range(6)]
OPTIONS: dict[str, Any] = {"metrics": NAMES, "errors": False, "window": 16}


@pytest.fixture(scope="module")
def opened(folder: Path) -> Opened:
    return open_model(folder)


def values(run: anisoscope.Run) -> dict[tuple[str, str], float | None]:
    return {(record.site, record.tokens): record.value for record in run}


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[str, str], float | None]:
    return values(anisoscope.measure(folder, text=TEXTS, **OPTIONS))


def test_a_module_with_its_tokenizer_reads_texts(opened: Opened, expected: Any) -> None:
    assert values(anisoscope.measure(opened.model, TEXTS, tokenizer=opened.processor, **OPTIONS)) == expected
    assert values(anisoscope.measure(opened.model, TEXTS, processor=opened.processor, **OPTIONS)) == expected
    assert values(anisoscope.measure(opened.model, text=TEXTS, tokenizer=opened.processor, **OPTIONS)) == expected
    with pytest.raises(InputError, match="two names for one thing"):
        anisoscope.measure(opened.model, TEXTS, tokenizer=opened.processor, processor=opened.processor)


def test_texts_come_from_any_iterable_and_from_rows_of_a_dataset(folder: Path, expected: Any) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"content": TEXTS, "label": list(range(6))})
    # the length of an iterator is not known, so its blocks are others; without error bars that changes no value
    for data in (TEXTS, tuple(TEXTS)):
        assert values(anisoscope.measure(folder, data, **OPTIONS)) == expected
    for once in (iter(TEXTS), (text for text in TEXTS)):
        assert values(anisoscope.measure(folder, once, **OPTIONS)) == pytest.approx(expected, rel=1e-9)
    assert values(anisoscope.measure(folder, dataset, field="content", **OPTIONS)) == pytest.approx(expected, rel=1e-9)


def test_rows_of_token_ids_are_batched_without_what_their_masks_leave_out(opened: Opened) -> None:
    datasets = pytest.importorskip("datasets")
    tokenizer: Any = opened.processor
    texts = [" ".join(TEXTS[0].split()[: 3 + number]) for number in range(5)]
    encoded = tokenizer(texts, padding="max_length", max_length=16, truncation=True)
    padded = datasets.Dataset.from_dict(dict(encoded))
    plain = [{"input_ids": tokenizer(text)["input_ids"][:16]} for text in texts]
    batch = {name: torch.tensor(x) for name, x in encoded.items() if name in ("input_ids", "attention_mask")}
    expected = values(anisoscope.measure(opened.model, [batch], **OPTIONS))
    for data in (padded, padded.with_format("torch"), plain, batch):
        found = values(anisoscope.measure(opened.model, data, **OPTIONS))
        assert found == pytest.approx(expected, rel=1e-4)
    with pytest.raises(InputError, match="Row 1 has 9 tokens; a window holds 8"):
        anisoscope.measure(opened.model, [{"input_ids": [5] * 9}], window=8)


def test_a_loader_of_pairs_gives_its_first_entry(opened: Opened) -> None:
    ids = torch.randint(3, 50, (8, 12), generator=torch.Generator().manual_seed(0))
    expected = values(anisoscope.measure(opened.model, [ids], **OPTIONS))
    loader = DataLoader(TensorDataset(ids, torch.arange(8)), batch_size=4)
    assert values(anisoscope.measure(opened.model, loader, **OPTIONS)) == pytest.approx(expected, rel=1e-6)
    assert values(anisoscope.measure(opened.model, iter(loader), **OPTIONS)) == pytest.approx(expected, rel=1e-6)


def test_a_number_is_a_layer(opened: Opened) -> None:
    ids = torch.randint(3, 50, (8, 12), generator=torch.Generator().manual_seed(0))
    assert anisoscope.measure(opened.model, [ids], sites=[1], metrics=NAMES, errors=False).sites() == ["resid.1"]


def test_another_list_of_texts_is_another_measurement(folder: Path, tmp_path: Path) -> None:
    first = anisoscope.measure(folder, text=TEXTS, out=tmp_path / "run", **OPTIONS)
    assert values(anisoscope.measure(folder, text=TEXTS, out=tmp_path / "run", **OPTIONS)) == values(first)
    with pytest.raises(anisoscope.StoreError, match=r"different: data \(6 texts"):
        anisoscope.measure(folder, text=TEXTS[:3], out=tmp_path / "run", **OPTIONS)


def test_a_module_is_not_changed_by_being_wrapped(opened: Opened) -> None:
    opened.model.train()
    wrapped = open_for(opened.model, Request.of())
    assert wrapped.model is opened.model
    assert wrapped.model.training
    assert (wrapped.modality, wrapped.info["source"]) == ("text", "GPT2Model")
    opened.model.eval()


def test_what_cannot_be_read_is_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match=r"columns are content\. Name the column of text \(field="):
        with_data(Request.of(), [{"content": "a"}])
    with pytest.raises(InputError, match=r"Linear\.forward has no parameter input_ids"):
        anisoscope.measure(torch.nn.Linear(2, 2), ["a text"], tokenizer="bytes")
