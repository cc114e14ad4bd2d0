"""A text that takes several steps."""

TEXT = "It was the best of times, it was the worst of times. " * 40
