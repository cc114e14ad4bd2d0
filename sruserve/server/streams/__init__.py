"""Server-held streams: their steps, their states, and the stores that keep them."""
