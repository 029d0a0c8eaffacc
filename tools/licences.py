"""Write docs/licences.md (`make licences`): the licence of every pinned package, as its own metadata states it."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"
_CLASSIFIER = "License :: "
_LONGEST = 60  # characters: longer fields hold the whole text of a licence
_HEADER = """<!-- written by tools/licences.py: do not edit -->

# Licences of dependencies

Every package that `constraints.txt` pins and that is installed for development, with the licence in its own metadata.
`pip install anisoscope` installs only those marked *always* and what they need; the others come with an extra or are
tools of development. `make licences` writes this page.

| package | version | licence | needed |
|---|---|---|---|
"""


def licence_of(package: Distribution) -> str:
    """Return the licence in a package's metadata: the expression, else the classifiers, else the short field."""
    facts = package.metadata
    if "License-Expression" in facts:
        return facts["License-Expression"]
    classifiers = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier") or () if c.startswith(_CLASSIFIER)]
    if names := [name for name in classifiers if name != "OSI Approved"]:
        return ", ".join(names)
    field = " ".join(" ".join(facts.get_all("License") or ()).split())
    return field if field and len(field) <= _LONGEST else "see its LICENSE file"


def rows() -> dict[str, tuple[str, str]]:
    """Return version and licence of every pinned package that is installed, by name."""
    lines = (ROOT / "constraints.txt").read_text().split()
    found = {}
    for name in (line.partition("==")[0] for line in lines):
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another system
            continue
        found[name] = package.version.partition("+")[0], licence_of(package)
    return found


def always() -> set[str]:
    """Return the names of the packages that every installation has."""
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}


def page() -> str:
    """Return the page."""
    from packaging.utils import canonicalize_name

    needed = always()
    lines = []
    for name, (version, licence) in rows().items():
        cells = (name, version, licence.replace("|", "/"), "always" if canonicalize_name(name) in needed else "")
        lines.append("| " + " | ".join(cells) + " |")
    return _HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{len(rows())} packages in {PAGE.name}\n")
