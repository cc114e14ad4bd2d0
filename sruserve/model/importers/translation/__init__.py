"""Checkpoints of translation systems, as model folders."""
