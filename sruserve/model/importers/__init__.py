"""Import other libraries' checkpoints into model folders: one file for each format."""
