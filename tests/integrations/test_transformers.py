"""The callback for the Hugging Face Trainer, in real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

import anisoscope
from anisoscope import Record
from anisoscope.alerts import alert, stop
from anisoscope.schedule import at, every
from tests.training import held_out, hooks_of, records, small_model, value, words

hf: Any = transformers
FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "schedule": every(2), "scalars": False}
ITEMS, LENGTH = 4, 16


class Words(Dataset[dict[str, Tensor]]):
    """Sequences of random words."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: x[0] for name, x in words(place, 1).items()}


def always(records: Any) -> list[Record]:
    """A rule that has something to say of every look."""
    return [alert(records[0], "always", "as it must")]


def hf_train(
    folder: Path,
    model: nn.Module,
    *callbacks: Any,
    steps: int = 5,
    resume: bool = False,
    eval: bool = False,
    **more: Any,
) -> Any:
    options = {"per_device_train_batch_size": ITEMS, "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3}
    arguments = hf.TrainingArguments(str(folder / "hf"), max_steps=steps, **{**options, "save_steps": 2, **more})
    held = Words() if eval else None
    trainer = hf.Trainer(model, arguments, train_dataset=Words(), eval_dataset=held, callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def hf_callback(folder: Path, **options: Any) -> Any:
    return anisoscope.integrations.transformers.GeometryCallback(held_out(), folder / "run", **{**FEW, **options})


def test_the_trainer_is_tracked_and_its_weights_are_bit_identical(tmp_path: Path) -> None:
    plain, followed = small_model(), small_model()
    hf_train(tmp_path / "a", plain, gradient_accumulation_steps=2)
    callback = hf_callback(tmp_path, weights=["lm_head.weight"])
    hf_train(tmp_path / "b", followed, callback, gradient_accumulation_steps=2)
    assert all(torch.equal(x, followed.state_dict()[name]) for name, x in plain.state_dict().items())
    assert {r.step for r in records(tmp_path)} == {0, 2, 4}
    (gradient,) = records(tmp_path, step=2, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * ITEMS * LENGTH  # both micro-batches
    assert value(tmp_path, step=4, site="grad.weight.lm_head.weight", metric="gradient_norm") > 0
    assert hooks_of(followed) == 0
    assert callback.tracker.overhead > 0


def test_a_trainer_that_resumes_continues_the_run(tmp_path: Path) -> None:
    hf_train(tmp_path, small_model(), hf_callback(tmp_path), steps=5)  # checkpoints at 2 and 4 (and the last, 5)
    last = tmp_path / "hf" / "checkpoint-5"
    if last.exists():
        last.rename(tmp_path / "gone")
    hf_train(tmp_path, small_model(), hf_callback(tmp_path), steps=7, resume=True)
    found = records(tmp_path)
    assert {r.step for r in found} == {0, 2, 4, 6}
    assert len({(r.step, r.site, r.metric, r.tokens, r.index, str(r.variant)) for r in found}) == len(found)


def test_an_alert_that_stops_ends_the_trainer(tmp_path: Path) -> None:
    trainer = hf_train(tmp_path, small_model(), hf_callback(tmp_path, alerts=[stop(always)]))
    assert trainer.state.global_step == 1


def test_every_step_of_the_trainer_has_its_loss_and_learning_rate(tmp_path: Path) -> None:
    callback = hf_callback(tmp_path, scalars=True, schedule=at(0), gradients=False)
    options: dict[str, Any] = {
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "gradient_accumulation_steps": 2,
    }
    trainer = hf_train(tmp_path, small_model(), callback, steps=4, eval=True, **options)
    losses = {r.step: r.value for r in records(tmp_path, metric="train_loss")}
    logged = {e["step"] - 1: e["loss"] for e in trainer.state.log_history if "loss" in e}
    assert losses == {step: pytest.approx(loss, abs=1e-3) for step, loss in logged.items()}  # the log is rounded
    assert len(losses) == 4
    assert [r.step for r in records(tmp_path, metric="learning_rate")] == [0, 1, 2, 3]
    assert [r.step for r in records(tmp_path, metric="update_ratio", site="loop")] == [0, 1, 2, 3]
    assert [r.step for r in records(tmp_path, metric="validation_loss")] == [2, 4]
    assert [r.step for r in records(tmp_path, metric="gradient_norm_before_clipping")] == [1, 2, 3, 4]
    assert callback.tracker._fits.bases._tangent.total_steps == 4


def test_losses_are_observed_until_the_training_ends(tmp_path: Path) -> None:
    from accelerate import Accelerator

    before = Accelerator.backward
    hf_train(tmp_path, small_model(), hf_callback(tmp_path), steps=1)
    assert Accelerator.backward is before


def test_concepts_are_described_with_the_tokenizer_of_the_trainer(tmp_path: Path) -> None:
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return f"w{ids[0]}"

        def save_pretrained(self, *_: Any, **__: Any) -> None:
            pass

    arguments = hf.TrainingArguments(
        str(tmp_path / "hf"), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    callback = hf_callback(tmp_path, concepts=3)
    hf.Trainer(
        small_model(),
        arguments,
        train_dataset=Words(),
        processing_class=Tokenizer(),
        data_collator=hf.default_data_collator,
        callbacks=[callback],
    ).train()
    notes = [r.note or "" for r in records(tmp_path, metric="concept_share")]
    assert notes
    assert all(note.startswith("'w") for note in notes)
