"""`lab train`, `lab twins`: train small transformers, measured by the tracker."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anisoscope.cli.app import app, command_line, print_json, stderr, stdout
from anisoscope.cli.lab_tables import effects_table, losses_table
from anisoscope.cli.options import split_names
from anisoscope.errors import InputError

if TYPE_CHECKING:
    from anisoscope.studies.lab.effects import Effect
    from anisoscope.studies.lab.train import OnStep, Trained

lab = typer.Typer(
    help="Train small transformers on local text and measure them during training.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(lab, name="lab")


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out instead of resuming it.")]


def _training_options(
    layers: Annotated[int | None, typer.Option(min=1, help="Layers [4].")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width of the residual stream [128].")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads [4].")] = None,
    context: Annotated[int | None, typer.Option(min=2, help="Tokens per window [128].")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of the weights [2000].")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Windows per step [16].")] = None,
    text: Annotated[
        str | None, typer.Option(help="A text file, topics (embedded), docstrings, zipf:exponent=1.2 or enwik8:PATH.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokenizer: char, byte or bpe [char].")] = None,
    symbols: Annotated[int | None, typer.Option(min=2, help="Largest vocabulary of the tokenizer.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate [0.002].")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of initial weights, data order, masks and dropout [0].")
    ] = None,
    switches: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other switch as name=value, such as attention=sigmoid; may be repeated."),
    ] = None,
    track: Annotated[bool, typer.Option(help="Measure the model during training.")] = True,
    concepts: Annotated[
        int, typer.Option(min=0, help="Follow this many concepts per layer during training, in words; 0 for none.")
    ] = 0,
    device: Annotated[str | None, typer.Option(help="Device: cpu, cuda, cuda:1.")] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
) -> None:
    """The options that all commands of the lab share."""


def _with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, which gets their values as the dict `options`."""
    signatures = [inspect.signature(command), inspect.signature(_training_options)]
    hints = get_type_hints(command, include_extras=True) | get_type_hints(_training_options, include_extras=True)
    parameters = [
        each.replace(annotation=hints[name])
        for signature in signatures
        for name, each in signature.parameters.items()
        if name != "options"
    ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        options = {name: values.pop(name) for name in signatures[1].parameters}
        command(**values, options=options)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


@lab.command(
    epilog="""Examples:

    anisoscope lab train --kind decoder --layers 6 --width 128 --steps 2000 --text corpus.txt --out runs/decoder

    anisoscope lab train --kind encoder --set attention=sigmoid --set norm_at=post --out runs/sigmoid

    anisoscope lab train --layers 2 --steps 500 --out runs/small --overwrite

    anisoscope lab train --tokens bpe --steps 600 --concepts 8 --out runs/concepts

    anisoscope measure runs/decoder/checkpoints/step-2000 --text corpus.txt
"""
)
@_with_training_options
def train(
    kind: Annotated[str | None, typer.Option(help="decoder, encoder or causal-masked [decoder].")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/KIND].")] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Train one small transformer.

    Checkpoints are saved at log-spaced steps. The table compares the losses with unigram and bigram counts.
    Interrupt it at any time: the same command resumes.
    """
    from anisoscope.studies.lab.experiment import Experiment, changed
    from anisoscope.studies.lab.tracking import tracked
    from anisoscope.studies.lab.train import train as train_model
    from anisoscope.studies.lab.training_run import discard_training

    experiment = changed(Experiment(), _switches(kind, options))
    folder = out or Path("runs") / (kind or "decoder")
    if options["overwrite"]:
        discard_training(folder)
    observe = tracked(experiment.recipe.steps, concepts=options["concepts"]) if options["track"] else None
    with training_bar(kind or folder.name, experiment.recipe.steps) as on_step:
        how: dict[str, Any] = {"device": options["device"], "on_step": on_step, "command": command_line()}
        done = train_model(experiment, folder, observe=observe, **how)
    _show([(kind or folder.name, done)], options["as_json"])
    report_stopped([done])


@lab.command(
    epilog="""Examples:

    anisoscope lab twins --out runs/twins

    anisoscope lab twins --switch attention=softmax,sigmoid,uniform --seeds 3 --out runs/attention

    anisoscope lab twins --switch attention=softmax,uniform --switch "text=topics;zipf:exponent=1.2" --seeds 3

    anisoscope lab twins --switch optimizer=adamw,sgd --seeds 5 --steps 500 -m mean_cosine,isoscore --json
"""
)
@_with_training_options
def twins(
    out: Annotated[Path, typer.Option(help="Folder of the runs, one per model.")] = Path("runs/twins"),
    switch: Annotated[
        list[str] | None,
        typer.Option(
            help="A switch and its values: name=value,value, or text=value;value. May be repeated: all combinations "
            "are trained. By default the three kinds of model."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Trainings per model, with different seeds. Intervals need three.")
    ] = 1,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            "-m",
            help="Metrics of the table of effects, separated by commas [mean_cosine,spectral_anisotropy,two_nn].",
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="The base model: decoder, encoder or causal-masked.")] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Train the same network with every combination of some switches, and print the effect of each switch.

    Initial weights, data and their order are the same for all models of one seed. The effects are those on the
    validation loss and on metrics at the end of training, averaged over layers, with 95 % intervals over seeds. Without
    --switch: causal next-token, causal masked-token and bidirectional masked-token models, so that mask and objective
    never change together. Interrupt it at any time: the same command resumes.
    """
    from anisoscope.metrics import find
    from anisoscope.studies.lab.experiment import Experiment, changed
    from anisoscope.studies.lab.factorial import factorial
    from anisoscope.studies.lab.final_values import METRICS, final_effects
    from anisoscope.studies.lab.tracking import tracked
    from anisoscope.studies.lab.twins import discard_cells, over_seeds, require_same_cells, train_cell, write_effects

    names = split_names(metrics) or METRICS
    find(names)  # a wrong name is refused before the first training
    design = factorial(changed(Experiment(), _switches(kind, options)), switch or ())
    experiments = over_seeds(design.cells, seeds)
    if options["overwrite"]:
        discard_cells(experiments, out)
    require_same_cells(experiments, out, track=options["track"])
    done: list[tuple[str, Trained]] = []
    how: dict[str, Any] = {"device": options["device"], "command": command_line()}
    for number, (name, cell) in enumerate(experiments.items(), start=1):
        observe = tracked(cell.recipe.steps, concepts=options["concepts"]) if options["track"] else None
        with training_bar(f"{name} ({number} of {len(experiments)})", cell.recipe.steps) as on_step:
            trained = train_cell(cell, out, name, observe=observe, on_step=on_step, **how)
        done.append((name, trained))
        if trained.stopped == "interrupted":
            break
    effects: dict[str, list[Effect]] = {}
    if len(done) == len(experiments) and done[-1][1].stopped != "interrupted":
        pairs = [(experiments[name], trained) for name, trained in done]
        effects = final_effects(design, pairs, names if options["track"] else ())
        write_effects(effects, out)
    _show_twins(done, effects, options["as_json"])
    report_stopped([trained for _, trained in done])


def _switches(kind: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The switches on the command line, by name."""
    from anisoscope.studies.lab.experiment import MODEL_SWITCHES, RECIPE_SWITCHES, switch_of

    known = {"kind", *MODEL_SWITCHES, *RECIPE_SWITCHES}
    named = {"kind": kind, **options}
    switches = {name: value for name, value in named.items() if name in known and value is not None}
    return switches | dict(switch_of(switch) for switch in options["switches"] or ())


@contextmanager
def training_bar(description: str, total: int, keep: bool = False) -> Iterator[OnStep]:
    """Show a bar on stderr with loss, speed and remaining time; it disappears at the end unless `keep` is set."""
    speed = TextColumn("{task.fields[loss]}  {task.fields[speed]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    # speed over the whole training: a shorter memory would see only single probes
    with Progress(*columns, console=stderr(), transient=not keep, speed_estimate_period=1e6) as bar:
        task = bar.add_task(escape(description), total=total, loss="", speed="")

        def on_step(step: int, loss: float) -> None:
            rate = bar.tasks[task].speed
            speed = "" if rate is None else f"{rate:.1f} steps/s"
            bar.update(task, completed=step, loss=f"loss {loss:.3f}", speed=speed)

        yield on_step


def _show(runs: list[tuple[str, Trained]], as_json: bool) -> None:
    rows = [_summary(name, done) for name, done in runs]
    if as_json:
        print_json(rows)
        return
    stdout().print(losses_table(rows))
    if all(_was_complete(done) for _, done in runs):
        stderr().print("[dim]Trained before. To train again, add --overwrite.[/]")
    for name, command in _next_commands([done for _, done in runs]).items():
        stderr().print(f"[dim]{name:<8}[/] {escape(command)}", soft_wrap=True)


def _show_twins(runs: list[tuple[str, Trained]], effects: Mapping[str, Sequence[Effect]], as_json: bool) -> None:
    from anisoscope.studies.lab.twins import effect_rows

    if as_json:
        print_json({"trainings": [_summary(name, done) for name, done in runs], "effects": effect_rows(effects)})
        return
    if effects:
        stdout().print(effects_table(effects))
    _show(runs, as_json=False)


def _was_complete(done: Trained) -> bool:
    return done.stopped is None and done.seconds == 0


def _next_commands(runs: Sequence[Trained]) -> dict[str, str]:
    """Commands that work on these trainings: a report only of what was measured."""
    from anisoscope.store.run import Run
    from anisoscope.studies.lab.token_data import HELD_OUT_TEXT

    commands = {}
    measured = [str(done.folder) for done in runs if next(iter(Run.open(done.folder).records()), None) is not None]
    if measured:
        commands["report"] = shlex.join(["anisoscope", "report", *measured])
    last = runs[-1].folder
    checkpoint = last / "checkpoints" / f"step-{runs[-1].step}"
    text = Path(os.path.normpath(last / Run.open(last).info["data"]["folder"])) / HELD_OUT_TEXT
    if checkpoint.is_dir():
        commands["measure"] = shlex.join(["anisoscope", "measure", str(checkpoint), "--text", str(text)])
    return commands


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


def report_stopped(runs: list[Trained]) -> None:
    """Report why a training stopped early and what to do.

    Raises:
        typer.Exit: With code 130 after Ctrl-C.
        InputError: The loss was not finite.
    """
    for done in runs:
        folder = escape(str(done.folder))
        if done.stopped == "interrupted":
            again = escape(command_line().replace(" --overwrite", ""))
            stderr().print(f"Stopped at step {done.step} and saved in {folder}. Resume with: {again}", soft_wrap=True)
            raise typer.Exit(130)
        if done.stopped == "diverged":
            raise InputError(
                f"The loss was no longer finite at step {done.step}; {done.folder} keeps the run up to the last "
                "checkpoint before it. Try a smaller --learning-rate or a longer warm-up (--set warmup=0.1)."
            )
        if done.stopped == "observer":
            stderr().print(f"A rule of the tracker stopped the training at step {done.step}. The run is in {folder}.")
