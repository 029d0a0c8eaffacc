"""Train with Cockpit and time what its instruments add to a step.

`python peer_cockpit.py LAYERS WIDTH CONTEXT BATCH ROUNDS` prints one line per round: the seconds of a plain step and of
one with Cockpit. Only quantities that work on a transformer are used: the others need BackPACK's rules for every layer,
and attention and layer norm have none.
"""

import sys
import time

import torch
from cockpit import Cockpit, quantities  # type: ignore[import-not-found]
from torch import Tensor, nn

layers, width, context, batch, rounds = map(int, sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(0)


class Decoder(nn.Module):
    """Embedding, causal layers and head; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, ids: Tensor) -> Tensor:
        states = self.blocks(self.embed(ids), mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), ids.flatten())


model = Decoder()
optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
due = [quantities.Loss, quantities.Parameters, quantities.Distance, quantities.GradNorm]
cockpit = Cockpit(list(model.parameters()), quantities=[quantity(track_schedule=lambda _: True) for quantity in due])
steps = 0


def step(follow: bool) -> float:
    """Return the seconds of one step."""
    global steps
    ids = torch.randint(0, 256, (batch, context))
    start = time.process_time()
    optimiser.zero_grad()
    loss = model(ids)
    if follow:
        with cockpit(steps, info={"batch_size": batch, "loss": loss, "individual_losses": loss[None]}):
            loss.backward()
        steps += 1
    else:
        loss.backward()
    optimiser.step()
    return time.process_time() - start


step(False), step(True)
for _ in range(rounds):
    print(step(False), step(True), flush=True)
