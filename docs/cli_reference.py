"""Write the reference of the command line from the commands themselves: the output of `--help` on one page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from anisoscope.cli import app

_SKIPPED = ("help",)


def cli_page() -> str:
    """Return the page: every command with its arguments, options, defaults and examples."""
    root = typer.main.get_command(app)
    known = list(commands(root, "anisoscope"))
    lines = [
        "# The command line",
        "",
        "This page lists what `anisoscope COMMAND --help` prints. Tables go to standard output, progress and messages",
        "to standard error. `--json` prints one JSON value and nothing else. An error prints one line and exits with",
        "code 1. Code 2 means an unknown option, and 130 means Ctrl-C.",
        "",
        "| command | description |",
        "|---|---|",
        *(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_first(command))} |" for name, command in known),
        "",
    ]
    for name, command in known:
        lines += _section(name, command)
    return "\n".join(lines)


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """List all commands below one with their full names; a group counts if it can be run itself."""
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if not subcommands or (name != "anisoscope" and command.invoke_without_command):
        yield name, command
    for each, subcommand in subcommands.items():
        yield from commands(subcommand, f"{name} {each}")


def examples(command: Any) -> list[str]:
    """List the command lines at the end of `--help`."""
    return [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("    ")]


def _section(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in _SKIPPED]
    usage = " ".join([name, *(_usage(p) for p in arguments), *(f"{p.opts[0]} …" for p in options if p.required)])
    lines = [f"## {name}", "", inspect.cleandoc(_help(command)), "", "```text", f"{usage} [OPTIONS]", "```", ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_usage(p)}` | {_cell(p.help or '')} |" for p in arguments]
        lines += [""]
    if options:
        kinds = _kinds(command.callback)
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += [f"| {_names(p, kinds)} | {_default(p)} | {_cell(p.help or '')} |" for p in options]
        lines += [""]
    if examples(command):
        lines += ["```sh", *examples(command), "```", ""]
    return lines


def _kinds(callback: Any) -> dict[str, Any]:
    """Return the annotation of every parameter; a command with options of a request has them in its signature."""
    while hasattr(callback, "__wrapped__") and "__signature__" not in vars(callback):
        callback = callback.__wrapped__
    if "__signature__" in vars(callback):
        return {p.name: p.annotation for p in callback.__signature__.parameters.values()}
    return get_type_hints(callback, include_extras=True)


def _help(command: Any) -> str:
    return command.help or command.callback.__doc__ or ""


def _first(command: Any) -> str:
    return inspect.cleandoc(_help(command)).split("\n\n")[0]


def _usage(parameter: Any) -> str:
    name = parameter.name.upper()
    name = f"{name} …" if parameter.nargs == -1 else name
    return name if parameter.required else f"[{name}]"


def _names(parameter: Any, kinds: dict[str, Any]) -> str:
    """Return an option with its type of value and bounds, or both forms of a switch."""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag:
        return names
    kind, *facts = get_args(kinds[parameter.name])
    inside = {each for part in (kind, *get_args(kind)) for each in (part, *get_args(part))}
    value = "number" if {int, float} & inside else "path" if Path in inside else "text"
    low, high = (next((getattr(fact, edge) for fact in facts if hasattr(fact, edge)), None) for edge in ("min", "max"))
    bounds = "" if low is None else f" ≥ {low}" if high is None else f" {low} … {high}"
    return f"{names} *{value}{bounds}*" + (" (may be repeated)" if parameter.multiple else "")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default() if callable(parameter.default) else parameter.default
    if value is None or value == () or value == [] or (parameter.is_flag and not parameter.secondary_opts):
        return ""
    if parameter.is_flag:
        return f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
    return f"`{','.join(value) if isinstance(value, list | tuple) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
