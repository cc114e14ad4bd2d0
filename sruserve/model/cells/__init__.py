"""The cells: one file per family."""
