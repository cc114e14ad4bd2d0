"""Honest clients together with hostile ones: `python -m bench.serve.soak`."""
