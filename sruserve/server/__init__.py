"""The server: an engine that schedules work on a model, and the HTTP edge in front of it."""
