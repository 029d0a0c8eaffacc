"""Geometry while a model trains, in any training loop, without changing the training."""

from anisoscope.tracker.tracker import Tracker

__all__ = ["Tracker"]
