"""Translation: beam search over forked states, all sentences of all requests in one batch."""
