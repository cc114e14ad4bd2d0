"""The engine: continuous batching of jobs on one model. It never sees HTTP."""
