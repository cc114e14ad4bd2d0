"""The tasks of models: each takes a validated request and a caller, and returns results."""
