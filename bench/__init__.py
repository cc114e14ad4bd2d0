"""Measurements against the peers. `make bench` runs them all; they are no part of the package."""
