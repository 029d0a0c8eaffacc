"""Geometry while a model trains, in any training loop, without touching it."""

from anisoscope.tracker.tracker import Tracker

__all__ = ["Tracker"]
