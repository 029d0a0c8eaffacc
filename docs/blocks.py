"""Run the code blocks of a page in order, in one folder, as a reader would. Used by `docs/build.py` and the tests.

The first line of a block says what to do with it:

    sh, python           run it; compare its output with the `text` block that follows directly, if there is one
    sh fails             run it; it must end with an error (mistakes that a page shows on purpose)
    sh needs REASON      do not run it, because it needs a download, a cluster or your own training; tests count these
    text, py, json, …    not code to run

In a `text` block `…` matches anything, and numbers may differ slightly, because processors round differently.
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
WIDTH = 100  # columns of the terminal in which pages are recorded
_FENCE = re.compile(r"^```(.*)$")
_NUMBER = re.compile(r"[−+-]?\d[\d,]*\.?\d*(e[+-]?\d+)?")
_RULE = re.compile("─+")
_SPARK = re.compile("[▁▂▃▄▅▆▇█]+")
_BAR = re.compile(r"\d%\|.*\[")  # progress bar of a library
_RELATIVE, _ABSOLUTE = 0.05, 0.02  # how much a number may differ from the page


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the rest of its first line, its text, and the output shown below it."""

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
    """List the fenced blocks of a page. A `text` block directly after a block that runs is its output.

    >>> [block.shown for block in blocks_of("```sh\\nls\\n```\\n```text\\na b\\n```")]
    ['a b']
    """
    blocks: list[Block] = []
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
            before = blocks[-1] if blocks else None
            if language == "text" and before is not None and before.runs and start - last_end <= 2:
                blocks[-1] = replace(before, shown=code, shown_line=start)
            else:
                blocks.append(Block(start, language, rest.strip(), code))
            opened, last_end = None, number
    if opened is not None:
        raise ValueError(f"the block that begins on line {opened[0]} has no end")
    return blocks


def run_blocks(blocks: list[Block], folder: Path, name: str) -> Iterator[tuple[Block, str]]:
    """Run each block and yield it with its output.

    Raises:
        AssertionError: A block fails although it should not, or the other way round.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if not block.runs:
            continue
        printed = io.StringIO()
        where = f"{name}, line {block.line}"
        with _reader_environment(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if block.language == "python":
                exec(compile(block.code, where, "exec"), names)
                code = 0
            else:
                code = max((_command(line, where) for line in commands(block.code)), default=0)
        output = _tidy(printed.getvalue(), folder)
        assert (code != 0) == block.fails, f"{where}: ended with {code}\n{output}"
        yield block, output


def refreshed(text: str, outputs: list[tuple[Block, str]]) -> str:
    """Return a page with the current output of its blocks. Output that still agrees stays as it is, with its `…`."""
    lines = text.splitlines()
    for block, output in reversed(outputs):
        if block.shown is not None and not agrees(block.shown, output):
            lines[block.shown_line : block.shown_line + len(block.shown.splitlines())] = output.splitlines()
    return "\n".join(lines) + "\n"


def commands(code: str) -> list[list[str]]:
    """List the commands of a shell block as words, without comments, with continued lines joined.

    >>> commands("anisoscope show runs/a   # a comment")
    [['anisoscope', 'show', 'runs/a']]
    """
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def agrees(shown: str, output: str) -> bool:
    """Return whether a page shows the printed output: same words, similar numbers, `…` for anything, any spaces.

    >>> agrees("loss 2.58 … done", "loss 2.61 after 3 s: done"), agrees("loss 2.58", "cost 2.58")
    (True, False)
    """
    parts = [_words(part) for part in shown.split("…")]
    printed = _words(output)
    position = 0  # of the first printed word that is not matched yet
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        starts = [position] if number == 0 else range(position, len(printed) - len(part) + 1)
        if last and number > 0:
            starts = [max(position, len(printed) - len(part))]
        match = next((start for start in starts if _same(part, printed[start : start + len(part)])), None)
        if match is None:
            return False
        position = match + len(part)
    return position == len(printed) or shown.rstrip().endswith("…")


def _words(text: str) -> list[str]:
    """Split a text into words and numbers: `0.36±.01` is three words; a sparkline or a rule is one, of any length."""
    spaced = _NUMBER.sub(lambda match: f" {match[0]} ", _SPARK.sub(" ▁ ", _RULE.sub("─", text)))
    return spaced.split()


def _same(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(_similar(a, b) for a, b in zip(shown, printed, strict=True))


def _similar(shown: str, printed: str) -> bool:
    if not (_NUMBER.fullmatch(shown) and _NUMBER.fullmatch(printed)):
        return shown == printed
    a, b = (float(word.replace(",", "").replace("−", "-")) for word in (shown, printed))
    return abs(a - b) <= max(_ABSOLUTE, _RELATIVE * max(abs(a), abs(b)))


def _command(words: list[str], where: str) -> int:
    """Run `anisoscope …` or `python FILE …` in this process and return the exit code."""
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
def _reader_environment(folder: Path) -> Iterator[None]:
    """Work in the reader's folder, in a terminal of fixed width without colours, and without a network."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "TERM", "HF_HUB_OFFLINE")}
    os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1", TERM="dumb", HF_HUB_OFFLINE="1")
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _tidy(output: str, folder: Path) -> str:
    """Return output as a page shows it: relative paths, no progress bars, no double empty lines."""
    for name in {str(folder.resolve()), str(folder)}:
        output = output.replace(name + "/", "")
    lines = [line.rstrip() for line in output.splitlines() if not _BAR.search(line)]
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    return "\n".join(kept).strip("\n")
