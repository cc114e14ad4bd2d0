"""Server-held streams in the memory of this process."""
