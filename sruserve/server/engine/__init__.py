"""The engine: continuous batching of jobs on one model. It knows no HTTP."""
