"""Add the evidence of a run of claims to that which comes with the package.

    anisoscope claims run --size small --out runs/claims
    python tools/pack_claims.py runs/claims

Claims of the run replace those of the package. The losses of a training are replaced if the run has more seeds of it.
Then `make docs` writes the page of claims.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anisoscope.studies.claims import committed_evidence as committed

HERE = Path(committed.__file__).parent


def added(packed: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Return packed evidence with the claims and losses of a run in place of older ones.

    Raises:
        SystemExit: The run has another size.
    """
    sizes = [each["settings"]["size"] for each in (packed, run)]
    if sizes[0] != sizes[1]:
        raise SystemExit(f"The evidence of the package has size {sizes[0]}, the run has size {sizes[1]}.")
    losses = {row["cell"]: row for row in packed["losses"]}
    for row in run["losses"]:
        if len(row["losses"]) > len(losses.get(row["cell"], {"losses": []})["losses"]):
            losses[row["cell"]] = row
    return {**packed, "losses": list(losses.values()), "claims": {**packed["claims"], **run["claims"]}}


def main(folder: str) -> None:
    """Write the evidence of the package with that of a run folder added."""
    packed = added(committed.committed(), committed.pack_evidence(folder))
    text = json.dumps(packed, ensure_ascii=False, separators=(",", ":")) + "\n"
    (HERE / committed.FILE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
