"""The blocks of the pages run and print what is shown; their commands, options and links exist."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import typer

from anisoscope.cli import app
from anisoscope.studies.atlas.evidence import committed_evidence, read_evidence
from tests.tiny_models import CATALOGUE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
WALKED = [
    README,
    DOCS / "tour.md",
    DOCS / "pitfalls.md",
    DOCS / "for-agents.md",
    *sorted((DOCS / "howto").glob("*.md")),
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

# Blocks that are not run, by page: each needs something that tests do not have. A new one must be added here.
NOT_RUN = {
    "README.md": ["needs stories15M"],
    "add-a-claim.md": ["needs the claim in the package"],
    "mask-sinks.md": ["needs a model of images"],
    "measure-my-model.md": ["needs downloads, images and recordings", "needs a model and a dataset of yours"],
    "recipes.md": ["needs a download", "needs a download"],
    "run-on-a-cluster.md": ["needs several workers", "needs eight processes", "needs Slurm"],
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks itself up
    spec.loader.exec_module(module)
    return module


blocks = load("blocks")
reader = load("reader")
COMMANDS: Any = typer.main.get_command(app)


@pytest.mark.filterwarnings("default")  # a reader sees warnings of libraries and continues
@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    if page.parent.name == "howto" or page.name == "for-agents.md":
        reader.prepare(tmp_path)
    for block, output in blocks.run_blocks(blocks.blocks_of(page.read_text()), tmp_path, page.name):
        if block.shown is not None:
            seen = f"--- shown\n{block.shown}\n--- printed\n{output}\n---"
            assert blocks.agrees(block.shown, output), f"{page.name}, line {block.line}: run `make docs`\n{seen}"


def test_make_docs_runs_the_same_pages() -> None:
    assert load("build").walked() == WALKED


def test_no_block_is_skipped_silently() -> None:
    for page in WALKED:
        on_page = blocks.blocks_of(page.read_text())
        odd = [block for block in on_page if not block.language or block.rest not in ("", "fails")]
        assert [block.rest for block in odd] == NOT_RUN.get(page.name, []), page.name
        quoted = ("toml", "text", "py", "bash") if page == README else ("toml", "text")
        assert all(block.language in (*blocks.RUN, *quoted) for block in on_page), page.name
        assert any(block.runs for block in on_page), page.name


def test_the_tour_shows_three_errors_and_all_output() -> None:
    executed = [block for block in blocks.blocks_of((DOCS / "tour.md").read_text()) if block.runs]
    assert sum(block.fails for block in executed) == 3
    assert all(block.shown for block in executed)


# --- commands on pages ---------------------------------------------------------------------------------------------


def command_lines(text: str) -> list[list[str]]:
    """List every `anisoscope …` and `torchrun … -m anisoscope …` in the shell blocks of a page, as words."""
    code = [block.code for block in blocks.blocks_of(text) if block.language in ("", "sh", "bash")]
    lines = "\n".join(code).replace("\\\n", " ").splitlines()
    commands = [blocks.commands(line)[0] for line in lines if line.startswith(("anisoscope ", "torchrun ", "srun "))]
    return [words[words.index("anisoscope") :] for words in commands]


def parse(words: list[str]) -> None:
    """Parse a command line as the program would, without running it."""
    command, rest = COMMANDS, words[1:]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        command, rest = command.commands[rest[0]], rest[1:]
    if not hasattr(command, "commands"):
        command.make_context(command.name, list(rest))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    for words in command_lines(page.read_text()):
        try:
            parse(words)
        except Exception as error:  # errors of the command line have no common public class
            pytest.fail(f"{page.name}: {shlex.join(words)}: {getattr(error, 'message', error)!r}")


def test_an_option_that_does_not_exist_is_detected() -> None:
    assert command_lines("```sh\nanisoscope measure v.npy   # a comment\n```") == [["anisoscope", "measure", "v.npy"]]
    parse(["anisoscope", "measure", "v.npy", "--tokens", "10"])
    with pytest.raises(Exception, match="tokenz"):
        parse(["anisoscope", "measure", "v.npy", "--tokenz", "10"])
    with pytest.raises(KeyError):
        parse(["anisoscope", "mesure", "v.npy"])


def test_every_command_and_option_has_help_and_examples_that_parse() -> None:
    reference = load("cli_reference")
    commands = dict(reference.commands(COMMANDS, "anisoscope"))
    assert len(commands) > 15
    for name, command in commands.items():
        lines = reference.examples(command)
        assert lines, f"{name} --help has no example"
        assert command.help or command.callback.__doc__, name
        for option in command.params:
            assert option.name == "help" or option.help, f"{name} {option.opts}"
        for line in lines:
            words = shlex.split(line, comments=True)
            parse(words[words.index("anisoscope") :])


# --- links ---------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: lower case, dashes for spaces, no punctuation."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text.replace("[`", "[").replace("`]", "]")))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}, but {target.name} has no such heading"


def test_every_page_is_in_the_index() -> None:
    listed = {(DOCS / link).resolve() for link in links(DOCS / "index.md")}
    missing = [page.name for page in sorted(DOCS.rglob("*.md")) if page.name != "index.md" and page not in listed]
    assert not missing


# --- the README ----------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_begins_with_a_figure_and_two_commands() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 130
    first = text.splitlines()[:36]
    assert any(line.startswith("![") for line in first)
    assert sum(line.startswith(("make ", "pip ", "anisoscope ")) for line in first) >= 2
    assert "docs/index.md" in text


def test_commands_in_tables_of_the_readme_exist_with_their_options() -> None:
    commands = re.findall(r"`(anisoscope [^`]+)`", README.read_text())
    assert len(commands) > 5
    for command in commands:
        parse(shlex.split(command))


def test_facts_in_the_readme_are_those_of_the_project() -> None:
    text = README.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['license']} · Python {project['requires-python'].removeprefix('>=')} or newer" in text
    assert (ROOT / "src" / "anisoscope" / "py.typed").is_file()
    assert f"{len(CATALOGUE)} architectures" in text
    tracker = json.loads((ROOT / "benchmarks" / "results" / "tracker.json").read_text())["figures"]
    whole = next(figure["value"] for figure in tracker if figure["name"] == "10,000 steps at the default cadence")
    assert f"adds\n{100 * (whole - 1):.1f} % to the time" in text
    alerts = {
        f["name"]: f["value"] for f in json.loads((ROOT / "benchmarks/results/alerts.json").read_text())["figures"]
    }
    found, false = (
        alerts["planted faults found, of 9"],
        alerts["healthy trainings with a false alarm of `stability`, of 10"],
    )
    assert f"{found} of 9 planted faults found, {false} of 10 healthy trainings alarmed" in text
    accuracy = (DOCS / "accuracy.md").read_text()
    compared = re.search(r"([\d,]+) values compared", accuracy)
    assert compared is not None
    assert f"{compared[1]} values agree" in text
    coverage = accuracy[accuracy.index("<!-- coverage") : accuracy.index("<!-- end of coverage")]
    rows = [line.split(" | ") for line in coverage.splitlines() if line.startswith("| `")]
    held = sorted(float(row[6].rstrip("%")) for row in rows)
    biased = sum("biased" in row[7] for row in rows)
    says = (
        f"in {held[0]:.0f}–{held[-1]:.0f} % of 300 simulated corpora (median {median(held):.1f} %, {len(rows)} cases)"
    )
    assert says in text
    assert f"the {biased} cases" in text


def test_numbers_below_the_figure_are_those_of_the_atlas() -> None:
    decoder = next(model for model in read_evidence(committed_evidence()) if model.name == "stories15M")
    site, peak, _, _ = max(decoder.points("spectral_anisotropy"), key=lambda point: point[1])
    kept = next(point[1] for point in decoder.points("spectral_anisotropy", "no-sink") if point[0] == site)
    below = " ".join(README.read_text().split())
    assert f"one direction seems to hold {peak:.0%} of the variance".replace("%", " %") in below
    assert f"and {kept:.0%} are left".replace("%", " %") in below


@pytest.mark.real
def test_the_readme_shows_what_a_real_model_gives() -> None:
    from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
    from anisoscope.studies.atlas.builders import model_folder

    build = load("build")
    folder = model_folder(registry().choose([build.REAL])[0], cache_folder())
    assert build.walk_real(folder) == README.read_text(), "run `python docs/build.py --real FOLDER`"


# --- the runner itself ---------------------------------------------------------------------------------------------


def test_a_page_with_different_output_is_detected() -> None:
    assert blocks.agrees("value 0.50 ± 0.01", "value 0.51 ± 0.02")
    assert not blocks.agrees("value 0.50", "value 0.90")
    assert not blocks.agrees("value 0.50", "value 0.50\nand more")
    assert not blocks.agrees("value 0.50 and more", "value 0.50")
    assert blocks.agrees("a …\nz", "a b c z")
    assert not blocks.agrees("a …\nz", "a b c")
    assert blocks.agrees("… GB free", "12 GB free")
    assert blocks.agrees("curve ▁▃█", "curve ▁▄▇█ ".replace("▇", ""))
    assert not blocks.agrees("did you mean isoscore?", "did you mean two_nn?")


def test_a_block_with_the_wrong_exit_code_is_detected(tmp_path: Path) -> None:
    def run(text: str) -> None:
        list(blocks.run_blocks(blocks.blocks_of(text), tmp_path, "page"))

    run("```sh fails\nanisoscope show nowhere\n```")
    with pytest.raises(AssertionError, match=r"page, line 1: ended with 1"):
        run("```sh\nanisoscope show nowhere\n```")
    with pytest.raises(AssertionError, match="ended with 0"):
        run("```sh fails\nanisoscope metrics isoscore\n```")
    with pytest.raises(AssertionError, match="not 'rm'"):
        run("```sh\nrm -r runs\n```")
    with pytest.raises(ValueError, match="has no end"):
        blocks.blocks_of("```sh\nls")


def test_only_changed_output_is_rewritten(tmp_path: Path) -> None:
    page = "```python\nprint('now 1')\n```\n```text\nnow …\n```\n```python\nprint('new')\n```\n```text\nold\n```\n"
    outputs = list(blocks.run_blocks(blocks.blocks_of(page), tmp_path, "page"))
    assert blocks.refreshed(page, outputs) == page.replace("old", "new")
