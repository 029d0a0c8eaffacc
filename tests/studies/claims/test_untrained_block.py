"""An untrained layer."""

from __future__ import annotations

import pytest

from anisoscope.studies.claims.untrained_block import PUBLISHED as BERT
from anisoscope.studies.claims.untrained_block import BlockSetting, pass_through_block


def test_a_bias_gives_the_expected_cosine() -> None:
    seen = pass_through_block((64, 4, 64), 1.0, BERT, seed=0)
    assert seen.cosine_in == pytest.approx(0.5, abs=0.03)  # N = ‖x‖: N²/(N² + ‖x‖²)
    assert pass_through_block((64, 4, 64), 1e-6, BERT, seed=0).cosine_in == pytest.approx(0, abs=0.02)


def test_a_bias_sharpens_attention_after_and_evens_it_before_a_norm() -> None:
    after = [pass_through_block((64, 2, 32), bias, BlockSetting("post"), seed=1).entropy for bias in (0.1, 30.0)]
    before = [pass_through_block((64, 2, 32), bias, BlockSetting("pre"), seed=1).entropy for bias in (0.1, 30.0)]
    assert after[1] < after[0] - 0.05
    assert before[1] > before[0]
