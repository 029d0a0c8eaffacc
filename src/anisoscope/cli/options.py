"""Command-line options made from the fields of a `Request`: names, types, defaults, limits and help texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import typer

from anisoscope.measurement.request import GROUP_OF, OPTIONS, Request

_LISTS = ("sites", "metrics")  # names separated by commas; the option may be repeated
_SHORT = {"metrics": "-m"}
_PANELS = {"sites": "Sites", "statistics": "Statistics", "vectors": "Files of vectors"}  # title of a group in --help


def with_request(
    names: Iterable[str], *, defaults: Mapping[str, Any] | None = None, help: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command with `**options` these options of a request; `request_of` makes the request from them.

    Args:
        names: Options, in the order of `--help`.
        defaults: Defaults that differ from the request's own.
        help: Help texts that differ from the request's own.
    """
    names = list(names)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        before = [p for p in own if p.default is inspect.Parameter.empty]
        after = [p for p in own if p.default is not inspect.Parameter.empty]
        values = {name: OPTIONS[name].default for name in names} | dict(defaults or {})
        options = [_parameter(name, values[name], (help or {}).get(name)) for name in names]
        command.__signature__ = inspect.Signature([*before, *options, *after])  # type: ignore[attr-defined]
        return command

    return decorate


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the request of the options that a command received."""
    return Request.of(**{name: split_names(x) if name in _LISTS else x for name, x in options.items()})


def split_names(texts: Sequence[str] | None) -> list[str] | None:
    """Return the names in texts that separate them by commas; None if the option was not given."""
    if not texts:
        return None
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _parameter(name: str, default: Any, help: str | None) -> inspect.Parameter:
    facts = OPTIONS[name].metadata
    kind = list[str] | None if name in _LISTS else _types()[name]
    if kind is Any:
        kind = facts["word"] | None
    if name in _LISTS and default is not None:
        default = [",".join(default)]
    flag = f"--{name.replace('_', '-')}"
    flags = [flag, _SHORT[name]] if name in _SHORT else [flag] if kind is bool and default is False else []
    panel = _PANELS.get(GROUP_OF[name], GROUP_OF[name].capitalize())
    option = typer.Option(*flags, help=help or facts["help"], min=facts["least"], rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Annotated[kind, option]
    )


@functools.cache
def _types() -> dict[str, Any]:
    hints = get_type_hints(Request)
    return {name: get_type_hints(hints[group])[name] for name, group in GROUP_OF.items()}
