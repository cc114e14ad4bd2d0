"""Print, store and compare the findings of a benchmark."""
