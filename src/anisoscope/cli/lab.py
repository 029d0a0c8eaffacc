"""`lab train`, `lab twins`: small transformers trained here, with the tracker looking on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anisoscope.cli.app import AsJson, app, command_line, stderr, stdout
from anisoscope.cli.lab_tables import losses_table
from anisoscope.errors import InputError

if TYPE_CHECKING:
    from anisoscope.studies.lab.experiment import Experiment
    from anisoscope.studies.lab.train import Told, Trained

lab = typer.Typer(
    help="Small transformers that are trained here, on text that is here, with the tracker looking on.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(lab, name="lab")

Layers = Annotated[int | None, typer.Option(min=1, help="Blocks [4].")]
Width = Annotated[int | None, typer.Option(min=1, help="Width of the stream [128].")]
Heads = Annotated[int | None, typer.Option(min=1, help="Attention heads [4].")]
Context = Annotated[int | None, typer.Option(min=2, help="Tokens a window [128].")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates of the weights [2000].")]
Batch = Annotated[int | None, typer.Option(min=1, help="Windows a step [16].")]
SourceText = Annotated[
    str | None, typer.Option("--text", help="A text file, topics (embedded), zipf:exponent=1.2 or enwik8:PATH.")
]
Tokens = Annotated[str | None, typer.Option(help="char, byte or bpe [char].")]
Symbols = Annotated[int | None, typer.Option(min=2, help="Tokens of the tokenizer, at most.")]
LearningRate = Annotated[float | None, typer.Option(help="Highest learning rate [0.002].")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of first weights, data order, masks and dropout [0].")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other switch as name=value, such as attention=sigmoid; repeat at will."),
]
Track = Annotated[bool, typer.Option(help="Follow the geometry while the model trains.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1.")]


@lab.command(
    epilog="""Examples:

    anisoscope lab train --kind decoder --layers 6 --width 128 --steps 2000 --text corpus.txt --out runs/decoder

    anisoscope lab train --kind encoder --set attention=sigmoid --set norm_at=post --out runs/sigmoid

    anisoscope lab train --resume --out runs/decoder

    anisoscope measure runs/decoder/checkpoints/step-2000 --text corpus.txt
"""
)
def train(
    called: typer.Context,
    kind: Annotated[str | None, typer.Option(help="decoder, encoder or causal-masked [decoder].")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/KIND].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out from its last state.")] = False,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    context: Context = None,
    steps: Steps = None,
    batch: Batch = None,
    text: SourceText = None,
    tokens: Tokens = None,
    symbols: Symbols = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    switches: Set = None,
    track: Track = True,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train one small transformer; checkpoints at log-spaced steps, losses beside what counting tokens would reach."""
    from anisoscope.studies.lab.experiment import Experiment, changed
    from anisoscope.studies.lab.observing import tracked
    from anisoscope.studies.lab.train import experiment_of, resume_training
    from anisoscope.studies.lab.train import train as start_training

    given = _given(called, switches)
    folder = out or Path("runs") / (kind or "decoder")
    experiment = experiment_of(folder) if resume else changed(Experiment(), given)
    if resume:
        _require_same(experiment, given, folder)
    options: dict[str, Any] = {"observe": tracked(experiment.recipe.steps) if track else None, "device": device}
    with training_bar(kind or folder.name, experiment.recipe.steps) as told:
        if resume:
            done = resume_training(folder, told=told, **options)
        else:
            done = start_training(experiment, folder, told=told, command=command_line(), **options)
    _show([(kind or folder.name, done)], as_json)
    say_why_stopped([done], again=f"anisoscope lab train --resume --out {folder}")


@lab.command(
    epilog="""Examples:

    anisoscope lab twins --out runs/twins

    anisoscope lab twins --switch attention=softmax,sigmoid,uniform --switch norm_at=post --out runs/attention

    anisoscope lab twins --switch optimizer=adamw,sgd --seeds 5 --steps 500 --out runs/optimisers
"""
)
def twins(
    called: typer.Context,
    out: Annotated[Path, typer.Option(help="One run folder a cell goes in here.")] = Path("runs/twins"),
    switch: Annotated[
        list[str] | None,
        typer.Option(help="What to change, one at a time: name=value,value. By default the three kinds of model."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each cell, from different first weights.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    kind: Annotated[str | None, typer.Option(help="What to change things in: decoder, encoder, causal-masked.")] = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    context: Context = None,
    steps: Steps = None,
    batch: Batch = None,
    text: SourceText = None,
    tokens: Tokens = None,
    symbols: Symbols = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    switches: Set = None,
    track: Track = True,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """The same network several times: same first weights, same data, same order, one thing changed.

    Without --switch: causal next-token, causal masked-token and bidirectional masked-token, so that mask and
    objective never change together.
    """
    from anisoscope.studies.lab.experiment import Experiment, cells, changed
    from anisoscope.studies.lab.observing import tracked
    from anisoscope.studies.lab.twins import over_seeds, train_cell

    wanted = over_seeds(cells(changed(Experiment(), _given(called, switches)), switch or ()), seeds)
    done: list[tuple[str, Trained]] = []
    for number, (name, cell) in enumerate(wanted.items(), start=1):
        observe = tracked(cell.recipe.steps) if track else None
        with training_bar(f"{name} ({number} of {len(wanted)})", cell.recipe.steps) as told:
            trained = train_cell(
                cell, out, name, resume=resume, observe=observe, device=device, told=told, command=command_line()
            )
        done.append((name, trained))
        if trained.stopped == "interrupted":
            break
    _show(done, as_json)
    again = command_line().removesuffix(" --resume") + " --resume"
    say_why_stopped([trained for _, trained in done], again=again)


def _given(called: typer.Context, switches: list[str] | None) -> dict[str, Any]:
    """The switches that were named on the command line."""
    from anisoscope.studies.lab.experiment import MODEL_SWITCHES, RECIPE_SWITCHES, switch_of

    known = {"kind", *MODEL_SWITCHES, *RECIPE_SWITCHES}
    own = {name: value for name, value in called.params.items() if name in known and value is not None}
    return own | dict(switch_of(switch) for switch in switches or ())


def _require_same(experiment: Experiment, given: dict[str, Any], folder: Path) -> None:
    """A run goes on as it began: a switch that is given again must have the value it had."""
    from anisoscope.studies.lab.experiment import changed, differences

    found = differences(experiment, changed(experiment, given))
    if found:
        name, (before, now) = next(iter(found.items()))
        raise InputError(
            f"{folder} was started with {name} {before}, not {now}; leave it out, or train in another --out"
        )


@contextmanager
def training_bar(what: str, total: int, stays: bool = False) -> Iterator[Told]:
    """A bar on stderr with the loss, the speed and the time left; it disappears when done, unless it `stays`."""
    speed = TextColumn("{task.fields[loss]}  {task.fields[speed]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    # speed over the whole training: probes come in between, and a short memory would see only one of them
    with Progress(*columns, console=stderr(), transient=not stays, speed_estimate_period=1e6) as bar:
        task = bar.add_task(escape(what), total=total, loss="", speed="")

        def told(step: int, loss: float) -> None:
            rate = bar.tasks[task].speed
            speed = "" if rate is None else f"{rate:.1f} steps/s"
            bar.update(task, completed=step, loss=f"loss {loss:.3f}", speed=speed)

        yield told


def _show(runs: list[tuple[str, Trained]], as_json: bool) -> None:
    rows = [_summary(name, done) for name, done in runs]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    stdout().print(losses_table(rows))
    folders = " ".join(escape(str(done.folder)) for _, done in runs)
    stderr().print(f"[dim]look at it[/]  anisoscope report {folders}", soft_wrap=True)
    last = runs[-1][1].folder / "checkpoints" / f"step-{runs[-1][1].step}"
    if last.is_dir():
        stderr().print(f"[dim]measure it[/]  anisoscope measure {escape(str(last))} --text FILE", soft_wrap=True)


def _summary(name: str, done: Trained) -> dict[str, Any]:
    last = done.losses[-1] if done.losses else {"train": None, "validation": None}
    return {
        "name": name,
        "folder": str(done.folder),
        "step": done.step,
        "stopped": done.stopped,
        "train": last["train"],
        "validation": last["validation"],
        **done.baselines,
        "seconds": round(done.seconds, 1),
    }


def say_why_stopped(runs: list[Trained], *, again: str) -> None:
    """Say why a training stopped before its end, and what to do; exit code 130 after Ctrl-C, 1 after divergence."""
    for done in runs:
        where = escape(str(done.folder))
        if done.stopped == "interrupted":
            stderr().print(
                f"stopped at step {done.step}, saved in {where}; go on with: {escape(again)}", soft_wrap=True
            )
            raise typer.Exit(130)
        if done.stopped == "diverged":
            raise InputError(
                f"the loss was no longer finite at step {done.step}; the run up to the checkpoint before is kept in "
                f"{done.folder}; try a smaller --learning-rate or a longer warm-up (--set warmup=0.1)"
            )
        if done.stopped == "observer":
            stderr().print(f"stopped at step {done.step} by a rule of the tracker; the run is in {where}")
