"""Networks of the SRU family: cells, state layout, vocabularies, model folders and imports."""
