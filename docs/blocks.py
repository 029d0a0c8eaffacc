"""The code blocks of a page, run in order in one folder, as a reader would; used by `docs/build.py` and the tests.

A block says in its first line what it is:

    sh, python           run; what it prints is compared with the `text` block straight after it, if there is one
    sh fails             run, and must end with an error: the mistakes that a page shows on purpose
    sh needs REASON      not run, because of what it needs (a download, a cluster, your own training); tests count them
    text, py, json, …    not code to run

In a `text` block `…` stands for anything, and numbers may differ a little: another processor rounds in another way.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RUN = ("sh", "python")
WIDTH = 100  # columns of the terminal that pages show
_FENCE = re.compile(r"^```(.*)$")
_NUMBER = re.compile(r"[−+-]?\d[\d,]*\.?\d*(e[+-]?\d+)?")
_RULE = re.compile("─+")
_SPARK = re.compile("[▁▂▃▄▅▆▇█]+")
_BAR = re.compile(r"\d%\|.*\[")  # a library's progress bar
_RELATIVE, _ABSOLUTE = 0.05, 0.02  # by how much a number may differ from the page


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what else its first line says, its text, and the output shown below it."""

    line: int
    language: str
    rest: str
    code: str
    shown: str | None = None
    shown_line: int = 0

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.rest.startswith("needs")

    @property
    def fails(self) -> bool:
        return self.rest == "fails"


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page; a `text` block straight after a block that runs is its output.

    >>> [block.shown for block in blocks_of("```sh\\nls\\n```\\n```text\\na b\\n```")]
    ['a b']
    """
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    last_end = -2
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence is None:
            inside.append(line)
        elif opened is None:
            opened, inside = (number, fence[1].strip()), []
        else:
            start, info = opened
            language, _, rest = info.partition(" ")
            code = "\n".join(inside)
            before = found[-1] if found else None
            if language == "text" and before is not None and before.runs and start - last_end <= 2:
                found[-1] = replace(before, shown=code, shown_line=start)
            else:
                found.append(Block(start, language, rest.strip(), code))
            opened, last_end = None, number
    if opened is not None:
        raise ValueError(f"the block that begins on line {opened[0]} has no end")
    return found


def run_blocks(blocks: list[Block], folder: Path, name: str) -> Iterator[tuple[Block, str]]:
    """Each block that runs with what it printed; one that ends in another way than it says is an AssertionError."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if not block.runs:
            continue
        printed = io.StringIO()
        where = f"{name}, line {block.line}"
        with _as_a_reader(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if block.language == "python":
                exec(compile(block.code, where, "exec"), names)
                code = 0
            else:
                code = max((_command(line, where) for line in commands(block.code)), default=0)
        output = _tidy(printed.getvalue(), folder)
        assert (code != 0) == block.fails, f"{where}: ended with {code}\n{output}"
        yield block, output


def refreshed(text: str, outputs: list[tuple[Block, str]]) -> str:
    """A page with what its blocks print now; what still agrees is left as it is, with its `…`."""
    lines = text.splitlines()
    for block, output in reversed(outputs):
        if block.shown is not None and not agrees(block.shown, output):
            lines[block.shown_line : block.shown_line + len(block.shown.splitlines())] = output.splitlines()
    return "\n".join(lines) + "\n"


def commands(code: str) -> list[list[str]]:
    """The commands of a shell block, as words; comments are left out and lines ending in a backslash joined.

    >>> commands("anisoscope show runs/a   # a comment")
    [['anisoscope', 'show', 'runs/a']]
    """
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def agrees(shown: str, output: str) -> bool:
    """Whether a page shows what was printed: word for word, numbers about, `…` for anything, whatever the spaces.

    >>> agrees("loss 2.58 … done", "loss 2.61 after 3 s: done"), agrees("loss 2.58", "cost 2.58")
    (True, False)
    """
    wanted = [_words(part) for part in shown.split("…")]
    there = _words(output)
    place = 0
    for number, part in enumerate(wanted):
        last = number == len(wanted) - 1
        starts = [place] if number == 0 else range(place, len(there) - len(part) + 1)
        if last and number > 0:
            starts = [max(place, len(there) - len(part))]
        found = next((start for start in starts if _same(part, there[start : start + len(part)])), None)
        if found is None:
            return False
        place = found + len(part)
    return place == len(there) or shown.rstrip().endswith("…")


def _words(text: str) -> list[str]:
    """Words and numbers apart, so that `0.36±.01` is three of them; a sparkline or a rule is one word, however long."""
    spaced = _NUMBER.sub(lambda found: f" {found[0]} ", _SPARK.sub(" ▁ ", _RULE.sub("─", text)))
    return spaced.split()


def _same(wanted: list[str], there: list[str]) -> bool:
    return len(wanted) == len(there) and all(_alike(a, b) for a, b in zip(wanted, there, strict=True))


def _alike(wanted: str, there: str) -> bool:
    if not (_NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(there)):
        return wanted == there
    a, b = (float(word.replace(",", "").replace("−", "-")) for word in (wanted, there))
    return abs(a - b) <= max(_ABSOLUTE, _RELATIVE * max(abs(a), abs(b)))


def _command(words: list[str], where: str) -> int:
    """Runs `anisoscope …` or `python FILE …` in this process and gives back how it ended."""
    from anisoscope.cli import main

    before = sys.argv
    try:
        if words[0] == "anisoscope":
            sys.argv = words
            main()
        elif words[0] == "python" and words[1].endswith(".py"):
            sys.argv = words[1:]
            runpy.run_path(words[1], run_name="__main__")
        else:
            raise AssertionError(f"{where}: only `anisoscope …` and `python FILE.py` are run, not {words[0]!r}")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0


@contextlib.contextmanager
def _as_a_reader(folder: Path) -> Iterator[None]:
    """In the reader's folder, in a terminal of a fixed width without colours, with no way to the network."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "TERM", "HF_HUB_OFFLINE")}
    os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1", TERM="dumb", HF_HUB_OFFLINE="1")
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _tidy(output: str, folder: Path) -> str:
    """Output as a page shows it: paths from the reader's folder, no progress, no run of empty lines."""
    for name in {str(folder.resolve()), str(folder)}:
        output = output.replace(name + "/", "")
    lines = [line.rstrip() for line in output.splitlines() if not _BAR.search(line)]
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    return "\n".join(kept).strip("\n")
