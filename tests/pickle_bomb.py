"""A pickle that leaves a trace when it is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class PickleBomb:
    """Unpickling it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)
