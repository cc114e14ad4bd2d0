"""What can be asked of a model: a validated request and a caller in, results out; no protocol."""
