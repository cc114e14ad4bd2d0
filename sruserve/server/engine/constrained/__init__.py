"""Constrained generation: text that has to match a regular expression or a JSON schema."""
