"""Lossless compression of files by a language model; knows models, and no server."""
