"""Networks whose file describes the wiring: a chain of steps becomes a model folder's parts."""
