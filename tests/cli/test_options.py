"""Command-line options that are made from the fields of a request."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from anisoscope.cli.options import request_of, split_names, with_request
from anisoscope.measurement.request import OPTIONS, Request


def invoke(*words: str) -> tuple[int, str]:
    """Run a command that prints its request."""
    app = typer.Typer()

    @app.command()
    @with_request(["text", "tokens", "sites", "metrics", "weights", "errors", "out"])
    def show(
        source: Annotated[str, typer.Argument()], extra: Annotated[int, typer.Option()] = 3, **options: Any
    ) -> None:
        typer.echo(f"{source} {extra} {request_of(options).flat()}")

    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_a_command_receives_its_options_as_a_request() -> None:
    code, output = invoke("model", "--text", "a.txt", "--tokens", "64", "--sites", "resid, q.3", "--no-errors")
    assert code == 0
    wanted = Request.of(text="a.txt", tokens=64, sites=["resid", "q.3"], errors=False)
    assert f"model 3 {wanted.flat()}" in output


def test_defaults_are_those_of_the_request() -> None:
    code, output = invoke("model", "--extra", "5")
    assert code == 0
    assert f"model 5 {Request.of(sites=['embed', 'resid', 'final']).flat()}" in output


def test_a_command_may_have_its_own_default() -> None:
    app = typer.Typer()

    @app.command()
    @with_request(["sites", "batch", "seed"], defaults={"sites": ("resid",), "batch": 4})
    def show(**options: Any) -> None:
        request = request_of(options)
        typer.echo(f"{request.sites.sites} {request.data.batch} {request.statistics.seed}")

    assert CliRunner().invoke(app, []).output == "('resid',) 4 0\n"


def test_limits_and_help_come_from_the_field() -> None:
    code, output = invoke("model", "--tokens", "1")
    assert code == 2
    assert "--tokens" in output
    code, output = invoke("--help")
    assert code == 0
    assert OPTIONS["weights"].metadata["help"] in " ".join(output.replace("│", " ").split())
    assert "--no-weights" not in output


def test_names_are_separated_by_commas() -> None:
    assert split_names(["aa, bb,,c ", "d"]) == ["aa", "bb", "c", "d"]  # the option may be repeated
    assert split_names(None) is None
