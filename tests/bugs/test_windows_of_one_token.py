"""Windows of one token have only first tokens: leaving those out left nothing and the measurement failed."""

import torch

import anisoscope
from tests.bugs.test_many_massive_tokens import Stretched


def test_windows_of_one_token_are_measured_with_their_first_tokens() -> None:
    torch.manual_seed(0)
    ids = torch.randint(8, 64, (40, 1))
    run = anisoscope.measure(Stretched().eval(), [{"input_ids": part} for part in ids.split(10)], sites=["resid"])
    records = list(run.records())
    assert {record.tokens for record in records} == {"all"}
    assert any(record.metric == "mean_cosine_across_documents" and record.value is not None for record in records)
