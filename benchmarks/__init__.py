"""Limits and peers: what the instrument reaches, measured beside what it is held to. Run with `make bench`."""
