"""Trainers that derive from the Hugging Face Trainer: those of TRL and of sentence-transformers, if installed.

Each is trained with the callback in its default form and without it: the weights must be the same to the bit.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anisoscope.schedule import every
from tests.training import records, small_model, words

hf: Any = transformers
pytestmark = pytest.mark.filterwarnings("default")  # of the libraries' own dependencies
STEPS = 3
OPTIONS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
}


def callbacks(probe: Any, folder: Path, *, tracked: bool) -> list[Any]:
    from anisoscope.integrations.transformers import GeometryCallback

    return [GeometryCallback(probe, folder / "run", schedule=every(2))] if tracked else []


def sentence(seed: int, length: int = 8) -> str:
    chance = random.Random(seed)
    return " ".join(f"w{chance.randrange(90)}" for _ in range(length))


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(94))]
    model = tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    words_of = tokenizers.Tokenizer(model)
    words_of.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=words_of, **special)


def require_tracked(folder: Path, trainer: Any, alone: Any) -> None:
    """Records of every step are there, the loss is the trainer's own, and the weights are those of a training alone."""
    assert [r.step for r in records(folder, metric="update_ratio", site="loop")] == list(range(STEPS))
    losses = [r.value for r in records(folder, metric="train_loss")]
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses == pytest.approx(logged, abs=1e-3)  # GRPO's models return another loss than the one that is trained
    assert len(losses) == STEPS
    for site in ("resid.1", "grad.resid.1", "pattern.1", "attn.1"):
        assert {r.step for r in records(folder, site=site)} >= {0, 2}
    assert not [r.note for r in records(folder) if r.value is None]
    before = alone.model.state_dict()
    assert all(torch.equal(x, before[name]) for name, x in trainer.model.state_dict().items())


@pytest.mark.parametrize("kind", ["SFT", "SFT, packed", "DPO", "GRPO"])
def test_the_trainers_of_trl_are_tracked(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    pytest.importorskip("datasets", reason="datasets is not installed")
    alone, tracked = (trained_by_trl(kind, tmp_path, tracked=each) for each in (False, True))
    require_tracked(tmp_path, tracked, alone)


def trained_by_trl(kind: str, folder: Path, *, tracked: bool) -> Any:
    trl, datasets = (importlib.import_module(name) for name in ("trl", "datasets"))
    method = kind.split(",")[0]
    columns = {
        "SFT": {"text": [sentence(i, 12) for i in range(40)]},
        "DPO": {
            name: [sentence(100 * k + i, 5) for i in range(40)]
            for k, name in enumerate(("prompt", "chosen", "rejected"))
        },
        "GRPO": {"prompt": [sentence(i, 4) for i in range(40)]},
    }[method]
    more: dict[str, dict[str, Any]] = {
        "SFT": {},
        "DPO": {"ref_model": small_model()},
        "GRPO": {"reward_funcs": lambda completions, **_: [float(len(text)) for text in completions]},
    }
    limits: dict[str, Any] = {"max_length": 32}
    if method == "GRPO":
        limits = {"num_generations": 4, "max_completion_length": 8}
    if kind == "SFT, packed":
        limits |= {"packing": True, "packing_strategy": "wrapped"}
    arguments = getattr(trl, f"{method}Config")(output_dir=str(folder / "out"), bf16=False, **OPTIONS, **limits)
    trainer = getattr(trl, f"{method}Trainer")(
        model=small_model(),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(columns),
        processing_class=tokenizer(),
        callbacks=callbacks({"input_ids": words(9, 8)["input_ids"]}, folder, tracked=tracked),
        **more[method],
    )
    trainer.train()
    return trainer


def parts_of(library: Any) -> tuple[Any, Any]:
    """The modules and the losses of sentence-transformers, before and since version 6."""
    if hasattr(library, "models"):
        return library.models, library.losses
    newer = "sentence_transformers.sentence_transformer"
    return importlib.import_module(f"{newer}.modules"), importlib.import_module(f"{newer}.losses")


def test_the_trainer_of_sentence_transformers_is_tracked(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("datasets", reason="datasets is not installed")
    folder = tmp_path / "bert"
    tokenizer().save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(vocab_size=97, **sizes)).save_pretrained(folder)
    alone, tracked = (trained_on_pairs(folder, tmp_path, tracked=each) for each in (False, True))
    require_tracked(tmp_path, tracked, alone)


def trained_on_pairs(bert: Path, folder: Path, *, tracked: bool) -> Any:
    library, datasets = (importlib.import_module(name) for name in ("sentence_transformers", "datasets"))
    modules, losses = parts_of(library)
    parts = [modules.Transformer(str(bert)), modules.Pooling(32)]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    pairs = {"anchor": [sentence(i) for i in range(40)], "positive": [sentence(100 + i) for i in range(40)]}
    probe = model.tokenize([sentence(1000 + i) for i in range(8)])
    trainer = library.SentenceTransformerTrainer(
        model=model,
        args=library.SentenceTransformerTrainingArguments(str(folder / "out"), **OPTIONS),
        train_dataset=datasets.Dataset.from_dict(pairs),
        loss=losses.MultipleNegativesRankingLoss(model),
        callbacks=callbacks(probe, folder, tracked=tracked),
    )
    trainer.train()
    return trainer
