"""Add the evidence of a run of claims to that which comes with the package.

    anisoscope claims run --size small --out runs/claims
    python tools/pack_claims.py runs/claims

A run with all claims replaces the evidence of the package. Otherwise its claims replace those of the package, and the
losses of a training are replaced if the run has at least as many seeds of it. Then `make docs` writes the page of
claims.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anisoscope.studies.claims import committed_evidence as committed

HERE = Path(committed.__file__).parent


def added(packed: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Return packed evidence with the claims and losses of a run of the same size in place of older ones.

    A run with all claims of the package replaces it whole, with its versions, machine and time.
    """
    if set(packed["claims"]) <= set(run["claims"]):
        return run
    losses = {row["cell"]: row for row in packed["losses"]}
    for row in run["losses"]:
        if len(row["losses"]) >= len(losses.get(row["cell"], {"losses": []})["losses"]):
            losses[row["cell"]] = row
    return {**packed, "losses": list(losses.values()), "claims": {**packed["claims"], **run["claims"]}}


def main(folder: str) -> None:
    """Write the evidence of the package with that of a run folder added."""
    run = committed.pack_evidence(folder)
    path = HERE / committed.file_of(run["settings"]["size"])
    packed = added(json.loads(path.read_text(encoding="utf-8")), run) if path.is_file() else run
    path.write_text(json.dumps(packed, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
