"""Sampling: from scores to the next token."""
