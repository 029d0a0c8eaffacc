"""Many models and checkpoints on many workers; resumable, with the numbers of one process."""

from anisoscope.sweep.driver import Swept, sweep
from anisoscope.sweep.engines import engine

__all__ = ["Swept", "engine", "sweep"]
