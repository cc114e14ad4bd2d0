"""The LRN repository's document classifier (doc/code/model.py), as TensorFlow 1 saved it."""
