"""Small trainings with a planted fault, and healthy ones, for the alert rules."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from anisoscope import Record, Run, Tracker
from anisoscope.alerts import Rule, call, papers, stability
from anisoscope.schedule import every

hf: Any = transformers
WORDS, LENGTH, ITEMS, WIDTH, LAYERS = 64, 32, 8, 32, 4
HELD_OUT = 10_000_000  # seed of the held-out batch


@dataclass(frozen=True)
class Training:
    """A training: its model, its optimiser, and what goes wrong in it.

    Attributes:
        name: What is planted.
        expects: Rules of which at least one must find it; none for a healthy training.
        model: Returns the model, from a seed.
        rate: The learning rate.
        warm_up: Steps in which the learning rate rises.
        labels: Returns the labels of a batch.
        before_step: Called with the model, the optimiser and the step before each step.
    """

    name: str
    expects: tuple[str, ...] = ()
    model: Callable[[int], Any] = lambda seed: decoder(seed)
    rate: float = 3e-3
    warm_up: int = 20
    labels: Callable[[Tensor], Tensor] = Tensor.clone
    before_step: Callable[[Any, torch.optim.Optimizer, int], None] = lambda model, optimiser, step: None


@dataclass
class Outcome:
    """What a training gave: its losses and its alerts."""

    losses: list[float] = field(default_factory=list)
    alerts: list[Record] = field(default_factory=list)
    raised: list[tuple[int, str]] = field(default_factory=list)  # the step of the loop, and the rule

    def raised_at(self, rules: tuple[str, ...]) -> int | None:
        """The step at which one of these rules raised an alert: scalars are read some steps after they arise."""
        return min((step for step, rule in self.raised if rule in rules), default=None)

    def loss_shows_at(self, by: float = 0.2, smooth: int = 5) -> int | None:
        """The first step at which the loss is not finite, or its mean over five steps is 20 % above its lowest."""
        lowest = math.inf
        for step in range(len(self.losses)):
            recent = self.losses[max(0, step - smooth + 1) : step + 1]
            mean = sum(recent) / len(recent)
            if not math.isfinite(mean) or mean > (1 + by) * lowest:
                return step
            if len(recent) == smooth:
                lowest = min(lowest, mean)
        return None


def decoder(seed: int, **changes: Any) -> Any:
    """A GPT-2 of four layers."""
    torch.manual_seed(seed)
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "vocab_size": WORDS, "n_positions": LENGTH}
    fixed = {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM", "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**{**sizes, **fixed, "attn_pdrop": 0.0, **changes})).train()


def llama(seed: int, **changes: Any) -> Any:
    """A Llama of four layers."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(**{**sizes, **heads, "max_position_embeddings": LENGTH, **changes})
    ).train()


def without_norms(seed: int) -> Any:
    """A GPT-2 whose norms inside the layers do nothing."""
    model = decoder(seed)
    for block in model.transformer.h:
        block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
    return model


def with_dead_layer(seed: int) -> Any:
    """A GPT-2 whose third layer writes nothing and cannot learn to."""
    model = decoder(seed)
    for branch in (model.transformer.h[2].attn.c_proj, model.transformer.h[2].mlp.c_proj):
        nn.init.zeros_(branch.weight)
        nn.init.zeros_(branch.bias)
        branch.requires_grad_(False)
    return model


def words(seed: int, chain: int, items: int = ITEMS) -> Tensor:
    """Sequences of a random chain: each word has four successors, and every eighth word repeats an earlier one."""
    table = torch.randint(WORDS, (WORDS, 4), generator=torch.Generator().manual_seed(1000 + chain))
    chance = torch.Generator().manual_seed(seed)
    ids = torch.zeros(items, LENGTH, dtype=torch.int64)
    ids[:, 0] = torch.randint(WORDS, (items,), generator=chance)
    choices = torch.randint(4, (items, LENGTH), generator=chance)
    for t in range(1, LENGTH):
        ids[:, t] = ids[:, t - 8] if t % 8 == 0 else table[ids[:, t - 1], choices[:, t]]
    return ids


def mixture(seed: int) -> Any:
    """A Mixtral of four layers and four experts."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": WORDS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 1}
    return hf.MixtralForCausalLM(hf.MixtralConfig(**sizes, **heads, max_position_embeddings=LENGTH)).train()


def with_broken_router(seed: int) -> Any:
    """A Mixtral whose second router sends every token to the expert of the largest of four equal logits."""
    model = mixture(seed)
    gate = next(p for name, p in model.named_parameters() if "layers.1" in name and name.endswith("gate.weight"))
    nn.init.zeros_(gate)
    gate.requires_grad_(False)
    return model


def grow_logits(model: Any, optimiser: torch.optim.Optimizer, step: int) -> None:
    """From step 150 on, queries grow by 2 % per step."""
    if step >= 150:
        with torch.no_grad():
            for block in model.transformer.h:
                block.attn.c_attn.weight[:, :WIDTH] *= 1.02


def jump(model: Any, optimiser: torch.optim.Optimizer, step: int) -> None:
    """At step 150 the learning rate is thirty times as high, for ten steps."""
    for group in optimiser.param_groups:
        group["lr"] = 0.1 if 150 <= step < 160 else 3e-3


def ruin(model: Any, optimiser: torch.optim.Optimizer, step: int) -> None:
    """At step 150 a weight becomes NaN."""
    if step == 150:
        with torch.no_grad():
            model.transformer.h[1].mlp.c_fc.weight[0, 0] = math.nan


def outgrow(model: Any, optimiser: torch.optim.Optimizer, step: int) -> None:
    """From step 150 on, what the second layer writes to one neuron grows by 3 % per step."""
    if step >= 150:
        with torch.no_grad():
            model.transformer.h[1].mlp.c_proj.weight[:, 5] *= 1.03
            model.transformer.h[1].mlp.c_proj.bias[5] += 0.05


EXPLODES = ("gradient_spike", "update_spike", "large_updates", "logits_grow", "massive_onset", "low_rank", "loss_spike")
FAULTS = (
    Training("learning rate too high", ("large_updates", "gradient_spike", "loss_spike"), rate=0.3, warm_up=100),
    Training("no normalisation", EXPLODES, model=without_norms, rate=3e-2),
    Training("attention logits grow", ("logits_grow",), before_step=grow_logits),
    Training("a jump of the learning rate", ("update_spike", "gradient_spike"), before_step=jump),
    Training("a weight becomes NaN", ("not_finite",), before_step=ruin),
    Training("one neuron outgrows the others", ("kurtosis_onset", "massive_onset"), before_step=outgrow),
    Training("a constant target", ("constant_output", "low_rank"), labels=lambda ids: torch.full_like(ids, 5)),
    Training("a dead layer", ("dead_layer",), model=with_dead_layer),
    Training("a broken router", ("router_collapse",), model=with_broken_router),
)  # fmt: skip
HEALTHY = tuple(
    Training(f"healthy {number}", model=model, rate=rate, warm_up=warm_up)
    for number, (model, rate, warm_up) in enumerate(
        [
            (decoder, 3e-3, 20),
            (decoder, 1e-3, 0),
            (decoder, 3e-3, 100),
            (lambda seed: decoder(seed, resid_pdrop=0.1, embd_pdrop=0.1), 3e-3, 20),
            (lambda seed: decoder(seed, n_embd=48, n_layer=3), 2e-3, 20),
            (llama, 3e-3, 20),
            (llama, 1e-3, 0),
            (lambda seed: llama(seed, num_hidden_layers=6), 3e-3, 50),
            (lambda seed: decoder(seed, n_layer=6), 1e-3, 20),
            (lambda seed: decoder(seed, scale_attn_by_inverse_layer_idx=True), 5e-3, 20),
        ]
    )
)


def train(
    training: Training,
    folder: Path,
    *,
    steps: int = 420,
    seed: int = 0,
    period: int = 20,
    rules: list[Rule] | None = None,
) -> Outcome:
    """Train with a tracker, with its default metrics and sites, and return losses and alerts.

    Args:
        training: The training.
        folder: Of the run.
        steps: Number of steps.
        seed: Of the model and the data.
        period: Steps from one probe to the next.
        rules: The rules; by default those of both presets.
    """
    model = training.model(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=training.rate, weight_decay=0.01)
    held_out = words(HELD_OUT, seed, 2 * ITEMS)
    outcome = Outcome()
    options: dict[str, Any] = {"gradients": False, "bars_every": None}  # no rule reads gradients of rows or error bars
    now = [0]

    def note(found: Record) -> None:
        outcome.raised.append((now[0], found.variant["rule"]))

    rules = [call(rule, note) for rule in ([*stability(), *papers()] if rules is None else rules)]
    with (
        _quiet(),
        Tracker(model, {"input_ids": held_out}, folder, schedule=every(period), alerts=rules, **options) as t,
    ):
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = training.rate * min(1.0, (step + 1) / max(1, training.warm_up))
            training.before_step(model, optimiser, step)
            now[0] = step
            ids = words(1 + step + 100_000 * seed, seed)
            t.probe(step)
            loss = model(input_ids=ids, labels=training.labels(ids)).loss
            loss.backward()
            t.watch(step, loss=loss)
            optimiser.step()
            optimiser.zero_grad()
            outcome.losses.append(float(loss.detach()))
    outcome.alerts = [record for record in Run.open(folder).records() if record.metric == "alert"]
    return outcome


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that alerts log: they are read from the run."""
    log = logging.getLogger("anisoscope")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
