"""Real loops of other people: Hugging Face Trainer, Lightning, accelerate; and their loggers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import accelerate
import lightning
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import anisoscope
from anisoscope import InputError, Record, Run, Tracker
from anisoscope.alerts import alert, stop
from anisoscope.integrations.loggers import by_step, name_of
from anisoscope.schedule import every
from tests.training import held_out, hooks_of, records, small_model, value, words

hf: Any = transformers
pl: Any = lightning.pytorch
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


# --- Hugging Face Trainer -----------------------------------------------------------------------------------------


def hf_train(folder: Path, model: nn.Module, *callbacks: Any, steps: int = 5, resume: bool = False, **more: Any) -> Any:
    options = {"per_device_train_batch_size": ITEMS, "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3}
    arguments = hf.TrainingArguments(str(folder / "hf"), max_steps=steps, **{**options, "save_steps": 2, **more})
    trainer = hf.Trainer(model, arguments, train_dataset=Words(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def hf_callback(folder: Path, **options: Any) -> Any:
    return anisoscope.integrations.transformers.GeometryCallback(held_out(), folder / "run", **{**FEW, **options})


def test_the_trainer_is_followed_and_its_weights_are_bit_identical(tmp_path: Path) -> None:
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


def test_a_rule_that_says_stop_ends_the_trainer(tmp_path: Path) -> None:
    trainer = hf_train(tmp_path, small_model(), hf_callback(tmp_path, alerts=[stop(always)]))
    assert trainer.state.global_step == 1


# --- Lightning ----------------------------------------------------------------------------------------------------


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
def test_lightning_is_followed_and_its_weights_are_bit_identical(tmp_path: Path) -> None:
    plain, _ = pl_train(tmp_path / "a", accumulate_grad_batches=2, enable_checkpointing=False)
    callback = pl_callback(tmp_path)
    followed, _ = pl_train(tmp_path / "b", callback, accumulate_grad_batches=2, enable_checkpointing=False)
    assert all(torch.equal(x, followed.state_dict()[name]) for name, x in plain.state_dict().items())
    assert {r.step for r in records(tmp_path)} == {0, 2}
    (gradient,) = records(tmp_path, step=2, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * ITEMS * LENGTH
    assert hooks_of(followed) == 0


@quietly
def test_a_rule_that_says_stop_ends_lightning(tmp_path: Path) -> None:
    _, trainer = pl_train(tmp_path, pl_callback(tmp_path, alerts=[stop(always)]), enable_checkpointing=False)
    assert trainer.global_step == 1


@quietly
def test_a_module_that_lightning_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'model"):
        pl_train(tmp_path, pl_callback(tmp_path, module="mode"), enable_checkpointing=False)


# --- accelerate ---------------------------------------------------------------------------------------------------


def test_a_loop_with_accelerate_needs_nothing_more(tmp_path: Path) -> None:
    weights = []
    for follow in (False, True):
        accelerator: Any = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = small_model()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data: Any = DataLoader(Words(), batch_size=ITEMS)
        prepared, optimiser, data = accelerator.prepare(model, optimiser, data)
        tracker = Tracker(prepared, held_out(), tmp_path / "run", **FEW) if follow else None
        step, fresh = 0, True
        torch.manual_seed(7)
        for batch in data:
            if tracker is not None and fresh:
                tracker.probe(step)
            fresh = False
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch).loss)
                if accelerator.sync_gradients:
                    if tracker is not None:
                        tracker.watch(step)
                    step, fresh = step + 1, True
                optimiser.step()
                optimiser.zero_grad()
        if tracker is not None:
            tracker.close()
        weights.append(model.state_dict())
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())
    (gradient,) = records(tmp_path, step=4, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * ITEMS * LENGTH


# --- loggers ------------------------------------------------------------------------------------------------------

LOOK = [
    Record("resid.0", "isoscore", 0.25, step=7, tokens="no-sink"),
    Record("pattern.1", "attention_entropy", 0.5, step=7, index=3),
    Record("grad.resid.0", "gradient_energy", 0.125, step=7, index=8, variant={"proxy": "pca", "basis": "frozen"}),
    Record("resid.0", "two_nn", None, step=7, note="no value"),
]
NAMES = {
    "geometry/isoscore/resid.0/no-sink": 0.25,
    "geometry/attention_entropy/pattern.1/3": 0.5,
    "geometry/gradient_energy/grad.resid.0/frozen/pca/8": 0.125,
}


def test_records_become_named_values_by_step() -> None:
    assert by_step(LOOK) == [(7, NAMES)]


def test_no_two_records_of_a_look_share_a_name(tmp_path: Path) -> None:
    model = small_model()
    with Tracker(model, held_out(), tmp_path / "run", schedule=every(1)) as tracker:
        tracker.probe(0)
        model(**words(0)).loss.backward()
        tracker.watch(0)
    found = list(Run.open(tmp_path / "run").records())
    assert len({name_of(record) for record in found}) == len(found)


def test_tensorboard_gets_every_value(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    anisoscope.integrations.to_tensorboard(tmp_path / "events")(LOOK)
    events = accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == NAMES
    assert events.Scalars("geometry/isoscore/resid.0/no-sink")[0].step == 7


def test_mlflow_gets_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs the full package
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    with mlflow.start_run() as run:
        anisoscope.integrations.to_mlflow()(LOOK)
    found = mlflow.get_run(run.info.run_id).data.metrics
    assert {name: found[name] for name in NAMES} == NAMES


def test_wandb_gets_every_value_against_a_step_of_its_own() -> None:
    defined: list[tuple[str, ...]] = []
    logged: list[dict[str, float]] = []
    run = SimpleNamespace(log=logged.append, define_metric=lambda *names, **by: defined.append((*names, *by.values())))
    log = anisoscope.integrations.to_wandb(run)
    log(LOOK)
    log(LOOK)
    assert defined == [("geometry/*", "geometry/step")]
    assert logged == [{**NAMES, "geometry/step": 7}] * 2


def test_wandb_without_a_run_says_what_to_call() -> None:
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match=r"wandb\.init"):
        anisoscope.integrations.to_wandb()(LOOK)


def test_trackio_gets_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    stand_in: Any = ModuleType("trackio")
    stand_in.log = logged.append
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    anisoscope.integrations.to_trackio()(LOOK)
    assert logged == [{**NAMES, "geometry/step": 7}]


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(InputError, match="pip install trackio"):
        anisoscope.integrations.to_trackio()


def test_importing_the_integrations_loads_none_of_the_libraries() -> None:
    heavy = "('torch', 'transformers', 'lightning', 'wandb')"
    code = f"import sys, anisoscope.integrations; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
