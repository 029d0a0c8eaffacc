"""Run folders on disk; needs neither torch nor metrics."""

from anisoscope.store.run import Run

__all__ = ["Run"]
