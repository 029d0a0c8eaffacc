"""Pages from templates: every value becomes text in the page unless it is marked as safe, so none can inject HTML."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render(name: str, **values: Any) -> str:
    """Fill in a template of `report/assets`.

    Args:
        name: The template's file name, such as "report.html".
        values: The template's variables. Text is escaped; wrap HTML that you made yourself in `markupsafe.Markup`.

    Returns:
        The page. A variable that the template needs and `values` lacks raises `jinja2.UndefinedError`.
    """
    return _environment().get_template(name).render(values)


def asset(name: str) -> str:
    """The text of a file in `report/assets`: a template, a script or a style sheet."""
    return files("anisoscope.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
