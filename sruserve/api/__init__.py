"""Models in this process: the server's tasks, engine and state tokens, without a protocol."""
