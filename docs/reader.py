"""Create the files that the how-to pages use: a small model, a text in documents, vectors. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_DOCUMENTS = 32
_LETTERS = 160  # per document


def prepare(folder: Path) -> None:
    """Write `model/`, `corpus.jsonl` and `vectors.npy` to a folder, always the same ones."""
    from anisoscope.studies.lab.corpora import embedded_text

    texts = [text.strip()[:_LETTERS] for text in embedded_text()][:_DOCUMENTS]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    rows = np.random.default_rng(0).standard_normal((600, 16)) * np.linspace(2, 0.5, 16) + 0.3
    np.save(folder / "vectors.npy", rows.astype(np.float32))
    _save_decoder(folder / "model", texts)


def _save_decoder(folder: Path, texts: list[str]) -> None:
    """Write a small decoder with random weights and its tokenizer, as `save_pretrained` does."""
    import tokenizers
    import torch
    import transformers

    parts: Any = tokenizers
    library: Any = transformers
    tokenizer = parts.Tokenizer(parts.models.BPE())
    tokenizer.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = parts.decoders.ByteLevel()
    alphabet = sorted(parts.pre_tokenizers.ByteLevel.alphabet())
    special = {"special_tokens": ["<|end|>"], "initial_alphabet": alphabet}
    tokenizer.train_from_iterator(texts, parts.trainers.BpeTrainer(vocab_size=320, show_progress=False, **special))
    torch.manual_seed(0)
    shape = {"n_embd": 24, "n_layer": 3, "n_head": 2, "vocab_size": 320, "n_positions": 64}
    model = library.GPT2LMHeadModel(library.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(folder)
    words = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    words.save_pretrained(folder)
