"""Track the geometry of a small decoder while it learns to count, in a plain torch loop.

    python examples/track_training.py [FOLDER]

The run is written to FOLDER (by default a temporary folder). `anisoscope report FOLDER` makes a report.
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from anisoscope import Run, Tracker, alerts
from anisoscope.schedule import any_of, every, log_spaced

STEPS, WORDS, LENGTH = 60, 32, 24


def counting(seed: int, items: int = 8) -> dict[str, torch.Tensor]:
    """Return sequences that count up by one, two or three from a random start, with random errors."""
    draw = torch.Generator().manual_seed(seed)
    start = torch.randint(WORDS, (items, 1), generator=draw)
    stride = torch.randint(1, 4, (items, 1), generator=draw)
    errors = torch.rand(items, LENGTH, generator=draw) < 0.3
    ids = (start + stride * torch.arange(LENGTH) + 7 * errors) % WORDS  # (items, LENGTH)
    return {"input_ids": ids, "labels": ids}


folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "counting"
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

tracker = Tracker(
    model,
    probe=counting(seed=1_000_000, items=32),  # held out: never trained on
    out=folder,
    schedule=any_of(log_spaced(until=16), every(20)),
    alerts=alerts.standard(),
)
with tracker:
    for step in range(STEPS + 1):
        tracker.probe(step)
        loss = model(**counting(step)).loss
        loss.backward()
        tracker.watch(step, loss=loss)
        optimizer.step()
        optimizer.zero_grad()

series: dict[int, dict[str, float]] = {}
shown = {
    ("resid.3", "isoscore", "no-sink"): "isoscore",
    ("resid.3", "two_nn", "no-sink"): "dimension",
    ("resid.3", "cka", "no-sink"): "CKA with step 0",
    ("grad.resid.1", "gradient_enrichment", "all"): "gradient enrichment",
}
for record in Run.open(folder).records():
    column = shown.get((record.site, record.metric, record.tokens))
    if column and record.value is not None:
        series.setdefault(record.step, {}).setdefault(column, record.value)
print("step  " + "  ".join(shown.values()))
for step, row in series.items():
    print(f"{step:4d}  " + "  ".join(f"{row[name]:{len(name)}.3f}" for name in shown.values()))
print(f"final loss {loss.item():.3f}; make a report with: anisoscope report {folder}")
