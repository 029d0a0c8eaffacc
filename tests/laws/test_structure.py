"""Structural limits over the library and its tests: short files, few parameters, one name per thing, no cycles."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import anisoscope
from tests.laws.test_imports import imports_of

ROOT = Path(anisoscope.__file__).parent
TESTS = Path(__file__).parent.parent
MODULES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 400
MAX_PARAMETERS = 8

# Functions and classes that users call: their keyword-only parameters are options, so any number is allowed.
ENTRY_POINTS = {*anisoscope.__all__, "sweep", "model_batches", "text_batches"}
# The same interface for two libraries.
SHARED_CLASS_NAMES = {"GeometryCallback"}
SHARED_FILE_NAMES = {"__init__.py", "__main__.py"}
# Imports that point up, with the reason.
ALLOWED_CYCLES = {("store", "report"): "Run.plot, show and report import report.views when they are called"}
# Test files at the top of tests/ that test no single module, with what they test.
TOP_LEVEL_TESTS = {
    "test_api_reference": "docs/api_reference.py and the docstrings of public names",
    "test_accuracy": "benchmarks/accuracy and the promises of docs/accuracy.md",
    "test_docs": "the generated pages, the README and the examples",
    "test_every_command": "every command once",
    "test_golden": "tests/golden.py",
    "test_margins": "tests/margins.py",
    "test_packaging": "the wheel and the sdist",
    "test_pages": "the code blocks and links of the pages",
    "test_site": "docs/build_site.py: the pages as a site",
}
UNMIRRORED = {"laws", "oracles", "bugs", "browser"}  # folders of tests that mirror no package

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    """Return the top-level package, or module, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Function, bool]]:
    """List every function of a module: its name with the class, its node, and whether it is a method."""

    def visit(node: ast.AST, owner: str) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield f"{owner}.{child.name}" if owner else child.name, child, bool(owner)
                yield from visit(child, "")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, child.name)
            else:
                yield from visit(child, owner)

    return visit(tree, "")


def is_command(function: Function) -> bool:
    """Return whether a function is a typer command or callback: its parameters are declared with typer."""
    return any("typer" in ast.unparse(each.annotation) for each in _arguments(function) if each.annotation)


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def parameters(name: str, function: Function, *, method: bool) -> int:
    """Count the parameters that a reader must know; keyword-only ones of public entry points do not count."""
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    count = len(function.args.posonlyargs) + len(function.args.args) - int(method and not static)
    return count if name.split(".")[0] in ENTRY_POINTS else count + len(function.args.kwonlyargs)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{name_of(path)} has {lines} lines, at most {MAX_LINES} are allowed: split it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_have_few_parameters(path: Path) -> None:
    too_many = [
        f"{name} has {count} parameters (line {function.lineno})"
        for name, function, method in functions_of(ast.parse(path.read_text()))
        if (count := parameters(name, function, method=method)) > MAX_PARAMETERS
        and not (package_of(path) == "cli" and is_command(function))
    ]
    assert not too_many, f"{name_of(path)}: {'; '.join(too_many)}; at most {MAX_PARAMETERS} are allowed"


def test_no_class_name_is_used_twice() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                owners[node.name.lstrip("_")].append(name_of(path))
    twice = {name: paths for name, paths in owners.items() if len(paths) > 1 and name not in SHARED_CLASS_NAMES}
    assert not twice


def test_no_file_name_is_used_twice() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        owners[path.name].append(name_of(path))
    twice = {name: paths for name, paths in owners.items() if len(paths) > 1 and name not in SHARED_FILE_NAMES}
    assert not twice


def test_every_package_has_an_init_file() -> None:
    missing = sorted({name_of(path.parent) for path in MODULES if not (path.parent / "__init__.py").exists()})
    assert not missing


# --- cycles -------------------------------------------------------------------------------------------------------


def package_imports() -> dict[str, set[str]]:
    """Return the graph of imports between top-level packages; lazy imports inside functions count, too."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        source = package_of(path)
        if source == "__init__":  # the public names: each is imported when it is first used
            continue
        for name in imports_of(path):
            target = name.split(".")[0]
            if target not in (source, "__init__") and (source, target) not in ALLOWED_CYCLES:
                graph[source].add(target)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """List the groups of packages that reach each other.

    >>> cycles({"a": {"b"}, "b": {"a", "c"}, "c": set()})
    [['a', 'b']]
    """

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen

    reached = {name: reach(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))) for name in sorted(graph)
    }
    return [list(group) for group in sorted(groups) if group]


def test_packages_do_not_import_each_other() -> None:
    graph = package_imports()
    found = cycles(graph)
    edges = [
        f"{name_of(path)} imports {name}"
        for group in found
        for path in MODULES
        for name in sorted(imports_of(path))
        if package_of(path) in group and name.split(".")[0] in group and name.split(".")[0] != package_of(path)
    ]
    assert not found, "\n".join(edges)


@pytest.mark.parametrize("edge", ALLOWED_CYCLES, ids=" -> ".join)
def test_an_import_that_may_point_up_is_still_needed_and_lazy(edge: tuple[str, str]) -> None:
    source, target = edge
    paths = [p for p in MODULES if package_of(p) == source and any(n.split(".")[0] == target for n in imports_of(p))]
    assert paths, f"{source} no longer imports {target}: remove it from the list"
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            imported = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not imported.startswith(f"anisoscope.{target}"), (
                f"{name_of(path)} imports {target} when it is loaded"
            )


def test_a_cycle_would_be_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


# --- docstrings ---------------------------------------------------------------------------------------------------


def shared_modules() -> list[Path]:
    """List the modules that another top-level package imports."""
    imported: dict[str, set[str]] = defaultdict(set)  # module or name in a module -> packages that import it
    for path in MODULES:
        for name in imports_of(path):
            imported[name].add(package_of(path))
    shared = []
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if imported[name] - {package_of(path)}:
            shared.append(path)
    return shared


def undocumented(tree: ast.Module) -> list[str]:
    """List the public functions and classes at the top of a module that have no docstring."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, Function | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]


@pytest.mark.parametrize("path", shared_modules(), ids=name_of)
def test_public_functions_and_classes_have_docstrings(path: Path) -> None:
    missing = undocumented(ast.parse(path.read_text()))
    assert not missing, f"{name_of(path)}: no docstring for {', '.join(missing)}"


@pytest.mark.parametrize("name", anisoscope.__all__)
def test_public_names_have_docstrings(name: str) -> None:
    value = getattr(anisoscope, name)
    assert (value.__doc__ or "").strip(), f"anisoscope.{name} has no docstring"


# --- tests mirror the library -------------------------------------------------------------------------------------

TEST_FILES = [path for path in sorted(TESTS.rglob("test_*.py")) if path.relative_to(TESTS).parts[0] not in UNMIRRORED]


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_file_is_named_after_the_module_that_it_tests(path: Path) -> None:
    relative = path.relative_to(TESTS)
    if len(relative.parts) == 1 and path.stem in TOP_LEVEL_TESTS:
        return
    name = path.stem.removeprefix("test_")
    module = ROOT / relative.parent / ("__init__.py" if name == "init" else f"{name}.py")
    assert module.exists(), (
        f"tests/{relative} should test src/anisoscope/{module.relative_to(ROOT)}, which does not exist"
    )


def test_the_list_of_top_level_tests_is_current() -> None:
    missing = [name for name in TOP_LEVEL_TESTS if name != "test_golden" and not (TESTS / f"{name}.py").exists()]
    assert not missing
