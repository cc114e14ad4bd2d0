"""Document readers: models that find the answer to a question in a text."""
