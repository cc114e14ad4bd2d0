"""`/v1/stream`: a stream over one WebSocket."""
