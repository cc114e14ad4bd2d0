"""Prometheus metrics: their definitions, what records them, and the page."""
