"""Translation: encoders and decoders, what they remember, and their model folders."""
