"""Compare `similarity` of two models with the forward passes that it needs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

import anisoscope
from anisoscope.data.batches import model_batches
from anisoscope.data.inputs import device_of, on_device
from anisoscope.models.open import Opened, opened_module
from benchmarks.harness import Figure, Outcome, Settings, clock

_LENGTH = 24  # characters of a document: short documents make the passes cheap, so the ratio is that of a hard case


def similarity(settings: Settings) -> Outcome:
    """Compare two models of 12 layers on 4,096 documents, in plain forward passes of both over the same documents."""
    rows = 512 if settings.quick else 4096
    texts = _documents(rows)
    models = [_model(384), _model(256)]
    # one pass of each is enough: thousands of batches, and both sides are sums of minutes
    passes = sum(_seconds(lambda opened=opened: _forward(opened, texts)) for opened in models)
    stages: list[tuple[str, float]] = []
    start = clock()
    anisoscope.similarity(
        *models,
        text=texts,
        tokenizer="bytes",
        limit=rows,
        on_stage=lambda what, _: stages.append((what, clock())),
    )
    end = clock()
    ends = [began for _, began in stages[1:]] + [end]
    steps = [(what, after - began) for (what, began), after in zip(stages, ends, strict=True)]
    name = f"similarity of two 12-layer models on {rows:,} documents of {_LENGTH} tokens, in forward passes of both"
    parts = [Figure(f"of which: {what}", took / passes, "×") for what, took in steps]
    return Outcome([Figure(name, (end - start) / passes, "×", 2.0), *parts])


def _model(width: int) -> Opened:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(width)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=width, n_layer=12, n_head=width // 64)
    opened = opened_module(GPT2Model(config).eval())
    opened.info.update(revision=None, digest=None)
    return opened


def _documents(count: int) -> list[str]:
    """Return different documents of equally many characters, with the digits and letters of a text."""
    chance = random.Random(0)
    letters = "etaoin shrdlu etaoin "
    return [f"{i:05d} " + "".join(chance.choices(letters, k=_LENGTH - 7)) + "." for i in range(count)]


def _forward(opened: Opened, texts: Sequence[str]) -> None:
    with torch.no_grad():
        for batch in model_batches(opened, texts, tokenizer="bytes"):
            opened.model(**on_device(batch.inputs, device_of(opened.model)))


def _seconds(job: Any) -> float:
    start = clock()
    job()
    return clock() - start
