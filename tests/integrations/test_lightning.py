"""The callback for Lightning, in real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import anisoscope
from anisoscope import InputError, Record
from anisoscope.alerts import alert, stop
from anisoscope.schedule import at, every
from tests.training import held_out, hooks_of, records, small_model, words

pl: Any = lightning.pytorch
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


class Learner(pl.LightningModule):  # type: ignore[misc]
    """The usual LightningModule: a model inside, a loss in training_step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small_model()

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def pl_train(folder: Path, *callbacks: Any, **more: Any) -> tuple[Learner, Any]:
    pl.seed_everything(5, verbose=False)
    learner = Learner()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_steps=4, default_root_dir=folder, callbacks=list(callbacks), **quiet, **more)
    trainer.fit(learner, DataLoader(Words(), batch_size=ITEMS))
    return learner, trainer


def pl_callback(folder: Path, **options: Any) -> Any:
    return anisoscope.integrations.lightning.GeometryCallback(held_out(), folder / "run", **{**FEW, **options})


quietly = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*isinstance.*treespec")


@quietly
def test_lightning_is_tracked_and_its_weights_are_bit_identical(tmp_path: Path) -> None:
    plain, _ = pl_train(tmp_path / "a", accumulate_grad_batches=2, enable_checkpointing=False)
    callback = pl_callback(tmp_path)
    followed, _ = pl_train(tmp_path / "b", callback, accumulate_grad_batches=2, enable_checkpointing=False)
    assert all(torch.equal(x, followed.state_dict()[name]) for name, x in plain.state_dict().items())
    assert {r.step for r in records(tmp_path)} == {0, 2}
    (gradient,) = records(tmp_path, step=2, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * ITEMS * LENGTH
    assert hooks_of(followed) == 0


@quietly
def test_an_alert_that_stops_ends_lightning(tmp_path: Path) -> None:
    _, trainer = pl_train(tmp_path, pl_callback(tmp_path, alerts=[stop(always)]), enable_checkpointing=False)
    assert trainer.global_step == 1


@quietly
def test_a_module_that_the_lightning_module_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'model"):
        pl_train(tmp_path, pl_callback(tmp_path, module="mode"), enable_checkpointing=False)


@quietly
def test_every_step_of_lightning_has_its_loss_and_learning_rate(tmp_path: Path) -> None:
    callback = pl_callback(tmp_path, scalars=True, schedule=at(0), gradients=False)
    pl_train(tmp_path, callback, accumulate_grad_batches=2, enable_checkpointing=False)
    losses = [r.value for r in records(tmp_path, metric="train_loss")]
    assert len(losses) == 4
    assert all(loss is not None and 4 < loss < 5 for loss in losses)  # log 97 = 4.57, not twice or half as much
    assert [r.value for r in records(tmp_path, metric="learning_rate")] == [1e-3] * 4
    assert callback.tracker._fits.bases._tangent.total_steps == 4
