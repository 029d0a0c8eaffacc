"""The callback for the Hugging Face Trainer, in real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

import anisoscope
from anisoscope import Record
from anisoscope.alerts import alert, stop
from anisoscope.schedule import every
from tests.training import held_out, hooks_of, records, small_model, value, words

hf: Any = transformers
FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "schedule": every(2)}
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


def hf_train(folder: Path, model: nn.Module, *callbacks: Any, steps: int = 5, resume: bool = False, **more: Any) -> Any:
    options = {"per_device_train_batch_size": ITEMS, "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3}
    arguments = hf.TrainingArguments(str(folder / "hf"), max_steps=steps, **{**options, "save_steps": 2, **more})
    trainer = hf.Trainer(model, arguments, train_dataset=Words(), callbacks=list(callbacks))
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
