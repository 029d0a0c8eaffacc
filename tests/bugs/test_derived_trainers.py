"""Trainers that derive from the Hugging Face Trainer: those of TRL and of sentence-transformers, if installed."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
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


def callback(probe: Any, folder: Path) -> Any:
    from anisoscope.integrations.transformers import GeometryCallback

    return GeometryCallback(probe, folder / "run", schedule=every(2), metrics=["mean_cosine"], bars_every=None)


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


def require_tracked(folder: Path, trainer: Any) -> None:
    assert [r.step for r in records(folder, metric="update_ratio", site="loop")] == list(range(STEPS))
    losses = [r.value for r in records(folder, metric="train_loss")]
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses == pytest.approx(logged, abs=1e-3)  # GRPO's models return another loss than the one that is trained
    assert len(losses) == STEPS
    assert {r.step for r in records(folder, metric="gradient_norm", site="grad.resid.1")} == {0, 2}
    assert not [r.note for r in records(folder) if r.value is None]


@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_the_trainers_of_trl_are_tracked(tmp_path: Path, kind: str) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    columns = {
        "SFT": {"text": [sentence(i, 12) for i in range(40)]},
        "DPO": {
            name: [sentence(100 * k + i, 5) for i in range(40)]
            for k, name in enumerate(("prompt", "chosen", "rejected"))
        },
        "GRPO": {"prompt": [sentence(i, 4) for i in range(40)]},
    }[kind]
    more: dict[str, dict[str, Any]] = {
        "SFT": {},
        "DPO": {"ref_model": small_model()},
        "GRPO": {"reward_funcs": lambda completions, **_: [float(len(text)) for text in completions]},
    }
    limits = {"num_generations": 4, "max_completion_length": 8} if kind == "GRPO" else {"max_length": 32}
    arguments = getattr(trl, f"{kind}Config")(output_dir=str(tmp_path / "out"), bf16=False, **OPTIONS, **limits)
    trainer = getattr(trl, f"{kind}Trainer")(
        model=small_model(),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(columns),
        processing_class=tokenizer(),
        callbacks=[callback({"input_ids": words(9, 8)["input_ids"]}, tmp_path)],
        **more[kind],
    )
    trainer.train()
    require_tracked(tmp_path, trainer)


def parts_of(library: Any) -> tuple[Any, Any]:
    """The modules and the losses of sentence-transformers, before and since version 6."""
    if hasattr(library, "models"):
        return library.models, library.losses
    newer = "sentence_transformers.sentence_transformer"
    return importlib.import_module(f"{newer}.modules"), importlib.import_module(f"{newer}.losses")


def test_the_trainer_of_sentence_transformers_is_tracked(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    folder = tmp_path / "bert"
    tokenizer().save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    hf.BertModel(hf.BertConfig(vocab_size=97, **sizes)).save_pretrained(folder)
    modules, losses = parts_of(library)
    parts = [modules.Transformer(str(folder)), modules.Pooling(32)]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    pairs = {"anchor": [sentence(i) for i in range(40)], "positive": [sentence(100 + i) for i in range(40)]}
    trainer = library.SentenceTransformerTrainer(
        model=model,
        args=library.SentenceTransformerTrainingArguments(str(tmp_path / "out"), **OPTIONS),
        train_dataset=datasets.Dataset.from_dict(pairs),
        loss=losses.MultipleNegativesRankingLoss(model),
        callbacks=[callback(model.tokenize([sentence(1000 + i) for i in range(8)]), tmp_path)],
    )
    trainer.train()
    require_tracked(tmp_path, trainer)
