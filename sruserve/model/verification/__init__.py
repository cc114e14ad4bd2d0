"""Compare a model with the library that trained it."""
