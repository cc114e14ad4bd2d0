"""Recurrent networks: cells, state layout, vocabularies, model folders and importers."""
