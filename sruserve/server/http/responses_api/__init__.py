"""OpenAI's Responses API, without a store: the id of a response is the sealed state of its end."""
