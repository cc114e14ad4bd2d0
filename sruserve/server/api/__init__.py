"""The HTTP edge: one file per protocol. Hot routes work on raw bytes; the rest is FastAPI."""
