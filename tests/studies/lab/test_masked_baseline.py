"""The baseline of masked models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.studies.lab.corpora import zipf_text
from anisoscope.studies.lab.masked_baseline import masked_ngram_loss
from anisoscope.studies.lab.targets import masked_token
from anisoscope.studies.lab.token_data import bigram_law, bigram_loss, prepare, unigram_law


def test_the_loss_at_masked_positions_is_that_of_bayes_rule(tmp_path: Path) -> None:
    data = prepare(zipf_text(vocabulary=6, lag=1, length=20_000), tmp_path, context=16)
    law, alone = bigram_law(data), unigram_law(data)
    assert law.sum(1) == pytest.approx(np.ones(len(law)))
    ids = data.held_out(8, 16)
    batch = masked_token(ids, data.mask_id, 0.3, 7)
    losses: dict[bool, list[float]] = {True: [], False: []}
    for row, position in (batch["labels"] != -100).nonzero().tolist():
        token = int(batch["labels"][row, position])
        for causal, kept in losses.items():
            p = alone.copy()
            left = int(batch["input_ids"][row, position - 1]) if position else data.mask_id
            if left != data.mask_id:
                p = law[left].copy()
            right = int(batch["input_ids"][row, position + 1]) if position < 15 else data.mask_id
            if not causal and right != data.mask_id:
                p = p * law[:, right]
            kept.append(-float(np.log(p[token] / p.sum())))
    for causal, kept in losses.items():
        assert masked_ngram_loss(data, [batch], causal=causal) == pytest.approx(float(np.mean(kept)), rel=1e-9)


def test_pairs_have_the_loss_of_the_law(tmp_path: Path) -> None:
    data = prepare(zipf_text(vocabulary=6, lag=1, length=20_000), tmp_path, context=16)
    pairs = torch.from_numpy(data.validation.astype(np.int64))
    direct = -np.log(bigram_law(data)[pairs[:-1], pairs[1:]]).mean()
    assert bigram_loss(data) == pytest.approx(float(direct), rel=1e-9)
