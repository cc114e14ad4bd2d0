"""Model folders with smaller weights, and what they cost in accuracy."""
