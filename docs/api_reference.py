"""Write the reference of the Python interface from the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from importlib import import_module
from typing import Any

import anisoscope

# Public names outside the package itself, by module.
MODULES = {
    "anisoscope.integrations.torchmetrics": ("GeometryMetric",),
    "anisoscope.integrations.sklearn": ("TwoNN", "Whitening", "AllButTheTop"),
    "anisoscope.integrations.transformers": ("GeometryCallback",),
    "anisoscope.integrations.lightning": ("GeometryCallback",),
    "anisoscope.integrations.loggers": ("to_wandb", "to_tensorboard", "to_mlflow", "to_trackio"),
}
FUNCTIONS = ("anisoscope.alerts", "anisoscope.schedule", "anisoscope.synthetic")  # all public functions of these
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples):\s*(.*)$")
_ENTRY = re.compile(r"^(\*{0,2}\w[\w. |]*):\s+(.*)$")


@dataclass
class Parts:
    """A docstring in parts: the text before any section, and the sections by name; examples may have no heading."""

    text: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)

    def entries(self, section: str) -> dict[str, str]:
        """The entries of a section such as Args, by name."""
        entries: dict[str, str] = {}
        name = ""
        for line in self.sections.get(section, []):
            match = _ENTRY.match(line)
            if match is not None:
                name = match[1]
                entries[name] = match[2]
            elif name and line.strip():
                entries[name] += " " + line.strip()
        return entries


def parts_of(docstring: str) -> Parts:
    """Split a docstring in Google style.

    >>> parts = parts_of("Do it.\\n\\nArgs:\\n    x: A number,\\n        or two.\\n\\nReturns:\\n    Another.")
    >>> parts.text, parts.entries("Args"), parts.sections["Returns"]
    (['Do it.', ''], {'x': 'A number, or two.'}, ['Another.', ''])
    """
    parts, section = Parts(), None
    for line in [*inspect.cleandoc(docstring).splitlines(), ""]:
        heading = _SECTION.match(line)
        if heading is not None:
            section = heading[1]
            parts.sections[section] = [heading[2]] if heading[2] else []
        elif section is not None and (line.startswith("    ") or not line.strip()):
            parts.sections[section].append(line[4:])
        elif parts.sections:  # what follows the sections is an example
            section = None
            parts.sections.setdefault("Example", []).append(line)
        else:
            parts.text.append(line)
    return parts


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public name with its full address and what it is, in the order of the page."""
    for name in sorted(anisoscope.__all__, key=str.lower):
        yield f"anisoscope.{name}", getattr(anisoscope, name)
    for module, names in MODULES.items():
        for name in names:
            yield f"{module}.{name}", getattr(import_module(module), name)
    for module in FUNCTIONS:
        for name, value in vars(import_module(module)).items():
            if inspect.isfunction(value) and value.__module__ == module and not name.startswith("_"):
                yield f"{module}.{name}", value


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class itself defines, with a docstring."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        documented = function.fget if isinstance(function, property) else function
        if inspect.isfunction(documented) and documented.__doc__:
            yield name, member


def api_page() -> str:
    """Return the page: every public name with its signature, arguments, result, errors and example."""
    names = list(public_names())
    lines = [
        "# The Python interface",
        "",
        "Everything here is imported when it is first used. `help(anisoscope.measure)` prints the same text. Metrics",
        "are in [metrics.md](metrics.md), commands in [cli.md](cli.md).",
        "",
        "| name | what it is |",
        "|---|---|",
        *(f"| [`{name}`](#{_anchor(name)}) | {_cell(_summary(value))} |" for name, value in names),
        "",
    ]
    for name, value in names:
        lines += _section(name, value)
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, value: Any) -> list[str]:
    lines = [f"## {name}", "", *_signature(name.rsplit(".", 1)[-1], value), *_body(value)]
    if isinstance(value, type):
        for member, function in members_of(value):
            what = function.__func__ if isinstance(function, classmethod | staticmethod) else function
            title = member if isinstance(what, property) else f"{member}{_parameters(what)}"
            lines += [
                f"### {name.rsplit('.', 1)[-1]}.{title}",
                "",
                *_body(what.fget if isinstance(what, property) else what),
            ]
    return lines


def _signature(name: str, value: Any) -> list[str]:
    if isinstance(value, type) and issubclass(value, Exception):
        return [f"Error, a kind of `{value.__bases__[0].__name__}`.", ""]
    if isinstance(value, type) and not is_dataclass(value) and value.__init__ is object.__init__:  # type: ignore[misc]
        return []
    return ["```py", f"{name}{_parameters(value)}", "```", ""]


def _parameters(value: Any) -> str:
    """A signature without types, which the descriptions give in words."""
    parameters = []
    for each in inspect.signature(value).parameters.values():
        if each.name in ("self", "cls"):
            continue
        default = each.default
        shown = each.replace(annotation=inspect.Parameter.empty)
        if default is not inspect.Parameter.empty and (callable(default) or len(repr(default)) > 40):
            shown = shown.replace(default=_Dots())
        parameters.append(shown)
    return str(inspect.Signature(parameters))


class _Dots:
    """A default whose value is too long to show."""

    def __repr__(self) -> str:
        return "…"


def _body(value: Any) -> list[str]:
    docstring = value.__doc__ or ""
    parts = parts_of(docstring)
    lines = [*_prose(parts.text), ""]
    for section in ("Args", "Attributes"):
        entries = parts.entries(section)
        if entries:
            lines += [f"{'Arguments' if section == 'Args' else section}:", ""]
            lines += [f"- `{name}`: {_plain(text)}" for name, text in entries.items()]
            lines += [""]
    for section in ("Returns", "Yields"):
        if section in parts.sections:
            text = " ".join(line.strip() for line in parts.sections[section] if line.strip())
            lines += [f"{section}: {_plain(text)}", ""]
    if entries := parts.entries("Raises"):
        lines += ["Raises:", "", *(f"- `{name}`: {_plain(text)}" for name, text in entries.items()), ""]
    for section in ("Example", "Examples"):
        if section in parts.sections:
            lines += [*_prose([*parts.sections[section], ""]), ""]
    return _without_double_blanks(lines)


def _prose(lines: list[str]) -> list[str]:
    """Text as it is, and examples as blocks."""
    out: list[str] = []
    inside = False
    for line in lines:
        if line.startswith(">>> ") and not inside:
            out += ["", "```py"]
            inside = True
        elif inside and not line.strip():
            out += ["```", ""]
            inside = False
            continue
        out.append(line if inside else _plain(line))
    if inside:
        out.append("```")
    return out


def _without_double_blanks(lines: list[str]) -> list[str]:
    return [line for number, line in enumerate(lines) if line.strip() or (number and lines[number - 1].strip())]


def _summary(value: Any) -> str:
    return _plain((inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " "))


def _plain(text: str) -> str:
    """Text in which nothing is read as HTML outside of code."""
    return "".join(
        part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
