"""Measuring: what to measure (`Request`), the engine that does it, and one driver per kind of input."""
