"""`atlas`: measure every trained model that installs by package name, add your own, and draw the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from anisoscope.cli.app import AsJson, WrittenAsJson, app, print_json, print_written, progress_bar, stderr, stdout
from anisoscope.errors import InputError, unknown

if TYPE_CHECKING:
    from anisoscope.studies.atlas.atlas_registry import AtlasModel
    from anisoscope.studies.atlas.evidence import ModelEvidence
    from anisoscope.studies.atlas.reruns import Rerun

atlas = typer.Typer(
    help="Real trained models on one page: geometry by layer, with and without sinks, next to untrained twins.",
    no_args_is_help=True,
)
app.add_typer(atlas, name="atlas")

Out = Annotated[
    Path | None, typer.Option(help="Folder of results. Default: the evidence that comes with the library, and yours.")
]
_SECONDS_PER_MODEL = 180  # of processor time, if the evidence of the library has none; for the announcement only


@atlas.command("list", epilog="Example:\n\n    anisoscope atlas list\n")
def list_models(as_json: AsJson = False) -> None:
    """List the models of the registry: package, download, licence, and whether the atlas has measured them."""
    from anisoscope.studies.atlas.atlas_registry import registry
    from anisoscope.studies.atlas.evidence import atlas_evidence

    done = {model.name for model in atlas_evidence(None)}
    if as_json:
        print_json(
            [
                {"name": m.name, "kind": m.kind, "modality": m.modality, "bytes": m.download, "licence": m.licence}
                | {"packages": [str(archive.package) for archive in m.archives], "measured": m.name in done}
                for m in registry().models.values()
            ]
        )
        return
    table = Table("model", "kind", "data", "download, MB", "licence", "packages", "measured", box=None)
    for model in registry().models.values():
        packages = ", ".join(str(archive.package) for archive in model.archives)
        cells = (model.name, model.kind, model.modality, f"{model.download / 1e6:,.0f}", model.licence, packages)
        table.add_row(*map(escape, cells), "yes" if model.name in done else "no")
    stdout().print(table)


@atlas.command(
    epilog="""Examples:

    anisoscope atlas run stories15M MiniLM-L6 --out runs/atlas

    anisoscope atlas run --out runs/atlas --workers 2
"""
)
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Models or families. Default: all.")] = None,
    out: Out = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for downloads, models and runs. Default: ~/.cache/anisoscope/atlas.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Measurements at a time, each in its own process.")] = 1,
    again: Annotated[bool, typer.Option("--again", help="Measure again from nothing.")] = False,
    quantised: Annotated[bool, typer.Option("--quantised", help="Also measure what rounding weights does.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download, build, check and measure models. Interrupt it at any time: the same command resumes.

    A model that fails its known-good check is not measured. Packages are pinned by checksum and never run code.
    """
    from anisoscope.studies.atlas import quantisation
    from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
    from anisoscope.studies.atlas.atlas_runs import measure_atlas
    from anisoscope.studies.atlas.evidence import own_evidence, study_path

    known = registry()
    models = known.choose(names or [])
    folder, where = out or own_evidence(), cache or cache_folder()
    _announce(models, folder, where, again)
    with progress_bar("atlas", None) as bar:
        outcome = measure_atlas(models, known, where, folder, workers=workers, again=again, on_status=bar.note)
        if quantised:
            study = quantisation.quantisation_study(known.choose(quantisation.MODELS), known, where, on_status=bar.note)
            quantisation.write_study(study, study_path(folder))
    compared = _compared(outcome.measured, folder)
    if as_json:
        texts = {rerun.model: rerun.text.replace("**", "") for rerun in compared}
        done = {"measured": list(outcome.measured), "before": list(outcome.skipped), "failed": dict(outcome.failed)}
        print_json({**done, "compared": texts})
    else:
        console = stdout()
        console.print(f"{len(outcome.measured)} measured, {len(outcome.skipped)} measured before; evidence in {folder}")
        for rerun in compared:
            console.print(escape(rerun.text.replace("**", "")), soft_wrap=True)
    if outcome.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in outcome.failed.items())
        raise InputError(f"{len(outcome.failed)} failed. {reasons}")


def _compared(names: list[str], folder: Path) -> list[Rerun]:
    """Compare new evidence with that of the library, and store the comparison next to it."""
    from anisoscope.studies.atlas.evidence import committed_evidence, read_evidence, reruns_path
    from anisoscope.studies.atlas.reruns import compare_reruns, write_reruns

    if folder.resolve() == committed_evidence().resolve():
        return []
    before = {model.name: model for model in read_evidence(committed_evidence())}
    after = {model.name: model for model in read_evidence(folder)}
    reruns = [compare_reruns(before[name], after[name]) for name in names if name in before]
    if reruns:
        write_reruns(reruns, reruns_path(folder))
    return reruns


def _announce(models: list[AtlasModel], folder: Path, cache: Path, again: bool) -> None:
    """Print what will be downloaded and how long it takes, before anything happens."""
    from anisoscope.studies.atlas.evidence import committed_evidence, read_evidence

    left = [model for model in models if again or not (folder / f"{model.name}.json").is_file()]
    archives = {archive.package.file: archive.package for model in left for archive in model.archives}
    missing = [package for name, package in archives.items() if not (cache / "packages" / name).is_file()]
    size = sum(package.size for package in missing) / 1e6
    known = {model.name: model.seconds for model in read_evidence(committed_evidence())}
    minutes = sum(known.get(model.name) or _SECONDS_PER_MODEL for model in left) / 60
    stderr().print(
        f"{len(left)} of {len(models)} models to measure; {size:,.0f} MB to download into {cache}; "
        f"about {minutes:,.0f} minutes of processor time"
    )


@atlas.command(
    epilog="""Examples:

    anisoscope atlas add ./my-model --text corpus.jsonl

    anisoscope atlas add ./my-vit --images photos/ --name my-vit
"""
)
def add(
    model: Annotated[Path, typer.Argument(help="A model: a folder, or a .gguf file.")],
    text: Annotated[Path | None, typer.Option(help="Text in the model's domain: a file, a folder, .jsonl.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of images.")] = None,
    audio: Annotated[Path | None, typer.Option(help="Folder of recordings.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name in the atlas. Default: the name of the folder.")] = None,
    kind: Annotated[str, typer.Option(help="decoder, encoder, or what it is.")] = "",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to measure.")] = 16_384,
    out: Out = None,
    as_json: WrittenAsJson = False,
) -> None:
    """Measure your own model and its untrained twin, and put both into the picture next to the others."""
    from anisoscope.studies.atlas.added_model import add_model
    from anisoscope.studies.atlas.evidence import own_evidence, write_evidence

    sources = {"text": text, "images": images, "audio": audio}
    chosen = {which: path for which, path in sources.items() if path is not None}
    if len(chosen) != 1:
        raise InputError("Name one input of the model's domain: --text, --images or --audio.")
    with progress_bar("atlas", None) as bar:
        evidence = add_model(
            model, *next(iter(chosen.items())), name=name, kind=kind, tokens=tokens, on_status=bar.note
        )
    path = write_evidence(evidence, out or own_evidence())
    print_written("evidence", path, as_json=as_json)
    stderr().print(f"{escape(evidence.name)} is in the atlas. Draw it with: anisoscope atlas page", soft_wrap=True)


@atlas.command(epilog="Example:\n\n    anisoscope atlas show --metric spectral_anisotropy\n")
def show(
    metric: Annotated[str, typer.Option(help="Which metric.")] = "spectral_anisotropy",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Print one metric of all models: first, half and last layer, highest value, with and without sinks."""
    from anisoscope.studies.atlas.evidence import atlas_evidence

    models = atlas_evidence(out)
    known = {name for model in models for name in model.inputs[model.domain]["trained"]}
    if metric not in known:
        raise unknown("metric of the atlas", metric, sorted(known))
    if as_json:
        values = {m.name: {policy: m.points(metric, policy) for policy in ("all", "no-sink")} for m in models}
        print_json(values)
        return
    table = Table("model", "kind", "data", "first", "half", "last", "highest", "without sinks", "untrained", box=None)
    for model in models:
        table.add_row(*map(escape, _show_row(model, metric)))
    stdout().print(table)


def _show_row(model: ModelEvidence, metric: str) -> tuple[str, ...]:
    every, kept = model.points(metric), model.points(metric, "no-sink")
    fresh = model.points(metric, "no-sink", state="untrained")
    if not every:
        return (model.name, model.kind, model.modality, *["–"] * 6)
    values = [every[0], every[len(every) // 2], every[-1], max(every, key=lambda point: point[1])]
    tops = [max(points, key=lambda point: point[1]) if points else None for points in (kept, fresh)]
    cells = ["–" if point is None else f"{point[1]:.3g}" for point in (*values, *tops)]
    return (model.name, model.kind, model.modality, *cells)


@atlas.command(epilog="Example:\n\n    anisoscope atlas page --html atlas.html\n")
def page(
    html: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("atlas.html"),
    out: Out = None,
    as_json: WrittenAsJson = False,
) -> None:
    """Write the atlas as one self-contained HTML page, from the evidence that comes with the library and your own."""
    from anisoscope.store.files import write_text
    from anisoscope.studies.atlas.atlas_page import atlas_html
    from anisoscope.studies.atlas.evidence import atlas_evidence, reruns_path, study_path
    from anisoscope.studies.atlas.quantisation import read_study, shifts
    from anisoscope.studies.atlas.reruns import read_reruns

    models = atlas_evidence(out)
    rounded = shifts(read_study(study_path(out)))
    write_text(html, atlas_html(models, rounded, read_reruns(reruns_path(out))))
    print_written("atlas", html, as_json=as_json)


@atlas.command(epilog="Example:\n\n    anisoscope atlas report stories15M --html stories15M.html\n")
def report(
    name: Annotated[str, typer.Argument(help="A model that `atlas run` has measured on this machine.")],
    html: Annotated[Path | None, typer.Option(help="The HTML report to write. Default: NAME.html.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: ~/.cache/anisoscope/atlas.")] = None,
    as_json: WrittenAsJson = False,
) -> None:
    """Write the report of one model of the atlas: every site and metric, next to its untrained twin."""
    from anisoscope.report.page import write_report
    from anisoscope.store.run import Run
    from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
    from anisoscope.studies.atlas.untrained_twin import SUFFIX

    (model,) = registry().choose([name])[:1]
    folder = (cache or cache_folder()) / "runs"
    paths = [folder / f"{which}--{model.input}" for which in (model.name, (model.twin or model.name) + SUFFIX)]
    if not all((path / "run.json").is_file() for path in paths):
        raise InputError(f"{model.name} has no runs on this machine. Measure it: anisoscope atlas run {model.name}")
    target = write_report([Run.open(path) for path in paths], html or Path(f"{model.name}.html"))
    print_written("report", target, as_json=as_json)
