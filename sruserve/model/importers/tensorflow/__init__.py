"""Checkpoints of TensorFlow, read without it."""
