"""States that leave the engine: their bytes, and the tokens that seal them."""
