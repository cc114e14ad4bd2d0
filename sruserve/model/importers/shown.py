"""Show what a foreign file holds in a message."""


def shown(value: object) -> str:
    """Return a foreign value as a text short enough for a message."""
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
