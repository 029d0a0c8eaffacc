"""Documents, messages and docstrings are written in plain English: a list of phrases that must not come back.

The list is a tripwire, not a style guide. Each phrase was part of a private dialect that readers stumbled over. Each
has an ordinary replacement. If a phrase is right in one place, add the sentence to `ALLOWED`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "src" / "anisoscope").rglob("*.py"))
SCRIPTS = [path for folder in ("docs", "examples", "tools") for path in sorted((ROOT / folder).glob("*.py"))]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_THING = (
    "run|step|row|record|file|document|folder|task|block|page|line|bar|value|number|axis|model|seed|cell|training|entry|"
    "column|process|point|curve|chart|token|matrix|dimension"
)
_UNIT = (
    "model|checkpoint|token|number|row|line|file|step|site|task|node|axis|metric|paper|page|seed|cell|benchmark|target|"
    "layer|head|document|unit|worker|character|second|dimension|batch|record|block|run|rank|process|machine|GPU|core"
)
_QUANTITY = "nats|seconds|minutes|bytes|tokens|rows|µs|GB|MB|operations|records|products"
# phrase -> what to write instead
BANNED = {
    rf"\b(?:a|one) (?:{_THING}) an? (?:{_UNIT})\b": "one row per token",
    rf"\b(?:{_QUANTITY}) an? (?:{_UNIT})\b": "tokens per second",
    r"\bgoes on\b|\bgo on (?:from|with|where|in)\b|\bwent on\b|\bgone on\b": "continues, resumes",
    r"\btaken? up again\b|\btakes? it up again\b": "resumed, restored",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bspoil(?:s|t|ed|ing)?\b": "corrupt",
    r"\bbr(?:eak|eaks|oke|oken) off\b": "interrupt",
    r"\banew\b": "again",
    r"\bat hand\b": "available",
    r"\bbeside\b": "next to, with",
    r"\blets? (?:it |them )?go\b|\blet go of\b": "release",
    r"\bput away\b": "discard, store",
    r"\b(?:held|kept|keeps?|holds?) (?:\w+ )?apart\b": "stored separately",
    r"\bwhat (?:would )?no structure (?:would )?give\b": "the null value",
    r"\bgr(?:ow|ows|ew|owing) up\b": "train",
    r"\bin front of the instrument\b": "while being measured",
    r"\bstrangers?(?:'s)?\b": "untrusted",
    r"\bas (?:few|many|little|much|\w+ times) as can be\b": "as possible",
    r"\b(?:within|after|of|at|by|most|measures|every) so many\b": "N, that many",
    r"\b(?:is|are|was|were|be|been) (?:told|said)\b(?! apart| from| to be)": "is reported, is printed",
    r"\btold (?:of|that|what|which|when|where|how)\b|\btell(?:s|ing)? of\b": "reported",
    r"\blook(?:s|ed|ing)? on\b": "measure",
    r"\b(?:at every|at each|of one|per|every|between) looks?\b|\btime a look\b": "measurement, probe, pass",
    r"\bgiv(?:e|es|en|ing) back\b|\bgave back\b": "return",
    r"\bstands? (?:beside|there|below|under|in for|apart)\b|\bstood\b": "is shown",
    r"\blies? (?:side by side|ready)\b": "is in",
    r"\bwithout a word\b": "without a message",
    r"\bends? with the same bits\b": "is bit-identical",
    r"\bsurveys?\b": "engine, measurement",
    r"\bdealt out\b|\bdeals? out\b": "split, distributed",
    r"\bwhat (?:is|was|were|has been) asked\b|\bwhere asked for\b|\bas asked\b": "request, on request",
    r"\bwhere (?:there (?:is|are) (?:none|one|any)|none is|it has (?:one|any|none)|one is given)\b": "if",
    r"\bc[ao]mes? of it\b": "the result",
    r"\bat the (?:most|least)\b": "at most, at least",
    r"\b(?:go(?:es|ne)?|went|streams?) by\b": "are streamed, have passed",
    r"\bthat (?:is|are) here\b|\b(?:is|are) here already\b": "that exists",
    r"\bsays what (?:it would cost|would it)\b": "estimates",
    r"\bbehind each other\b|\bone behind the other\b": "one after the other",
    r"\bis no concern\b": "does not matter",
    r"\bhow (?:to go on|it goes on)\b": "how to resume",
    r"\bin another way than\b": "differently from",
    r"\blike(?:s|d)? to know\b": "check",
    r"\bhave (?:it|them) (?:made|opened|done)\b": "make, open, do",
}
PATTERNS = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in BANNED.items()}

# Sentences in which a phrase is right.
ALLOWED: frozenset[str] = frozenset()


def dialect_of(text: str) -> list[str]:
    """List the banned phrases of a text, each with its replacement."""
    flat = " ".join(text.split())
    for sentence in ALLOWED:
        flat = flat.replace(sentence, "")
    return [
        f"{match[0]!r} in …{flat[max(0, match.start() - 40) : match.end() + 40]}…; write: {instead}"
        for pattern, instead in PATTERNS.items()
        for match in pattern.finditer(flat)
    ]


def prose_of(page: str) -> str:
    """Return a page without names in code spans and without the output of commands, which the source decides."""
    shown = re.sub(r"^```text\n.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", "`…`", shown)


def strings_of(source: str) -> list[tuple[int, str]]:
    """List the string literals of a module with their lines; the constant parts of an f-string count as one text."""
    found: list[tuple[int, str]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    visit(part.value)
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_plain_english(page: Path) -> None:
    problems = dialect_of(prose_of(page.read_text()))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_and_docstrings_are_plain_english(path: Path) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for line, text in strings_of(path.read_text())
        for problem in dialect_of(text)
    ]
    assert not problems, "\n".join(problems)


def test_the_list_catches_the_dialect_and_spares_plain_english() -> None:
    dialect = (
        "a row a token",
        "one run a model, a step a checkpoint",
        "the same command goes on",
        "Mended: a test",
        "the level stands\nbeside it",
        "files from strangers",
        "read as few times as can be",
        "falls within so many steps",
        "gives back the answer",
    )
    for text in dialect:
        assert dialect_of(text), text
    plain = (
        "one row per token",
        "besides, we recommend it",
        "too few tokens for so many dimensions",
        "give the run a name",
        "look at the file",
        "the same command resumes",
    )
    for text in plain:
        assert not dialect_of(text), text


def test_strings_of_a_module_are_found_with_their_lines() -> None:
    source = '"""Doc."""\nx = f"one {1 + 1} row"\ny = "two"  # a comment\n'
    assert strings_of(source) == [(1, "Doc."), (2, "one … row"), (3, "two")]
