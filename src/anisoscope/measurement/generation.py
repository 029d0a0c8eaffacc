"""Tokens that the model generates, as batches: prompts from the text are continued, and only new tokens count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from anisoscope.data.inputs import device_of
from anisoscope.data.token_table import Batch, make_batch, window_table
from anisoscope.errors import InputError
from anisoscope.models.open import Opened

PROMPT = 32  # tokens of each window that the model continues
_FIRST_DOCUMENT = 1 << 40  # each continuation is a document


def generated_batches(opened: Opened, batches: Iterable[Batch], new: int, *, seed: int) -> Iterator[Batch]:
    """Yield the beginning of each window with `new` tokens sampled from the model (temperature 1). Only those count.

    Sampling is seeded and does not change the caller's random state.
    """
    model = opened.model
    if not getattr(model, "can_generate", lambda: False)() or opened.modality != "text":
        raise InputError(f"{opened.info['architecture']} cannot generate text; --generate needs a language model")
    limit = opened.info["max_positions"]
    if limit is not None and PROMPT + new > limit:
        raise InputError(
            f"{PROMPT} + {new} tokens exceed the model's {limit} positions; generate at most {limit - PROMPT}"
        )
    device = device_of(model)
    document = _FIRST_DOCUMENT
    for number, batch in enumerate(batches):
        whole = batch.counts[:, :PROMPT].all(1)  # windows shorter than a prompt are skipped
        if batch.counts.shape[1] < PROMPT or not bool(whole.any()):
            continue
        prompt = batch.inputs["input_ids"][:, :PROMPT][whole].to(device)
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(seed + number)
            ids = model.generate(  # type: ignore[operator]
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                pad_token_id=0,
            ).cpu()  # (b, PROMPT + new)
        b, length = ids.shape
        documents = torch.arange(document, document + b)
        document += b
        table = window_table(
            ids, torch.full((b,), length), documents, torch.zeros(b, dtype=torch.int64), torch.zeros_like(ids).bool()
        )
        counts = table.counts & (table.offset >= PROMPT)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield make_batch(replace(table, counts=counts), inputs, unit="continuations")
    if document == _FIRST_DOCUMENT:
        raise InputError(f"no window of the text has {PROMPT} tokens to continue; use a longer text or window")
