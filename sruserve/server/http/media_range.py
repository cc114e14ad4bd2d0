"""What a client prefers, by its `Accept` and `Accept-Encoding` (RFC 9110, 12.5.1 and 12.5.3)."""

# A browser's header has about 150 characters and 8 ranges. The event loop reads it.
_MAX_CHARACTERS, _MAX_RANGES = 1024, 64


def prefers(accept: str, first: str, second: str) -> bool:
    """Whether the header ranks `first` above `second`; ranges that cannot be read count for none.

    A header that is too long for the event loop ranks nothing.

    first, second: media types such as `text/html`, in lower case.
    """
    ranges = _ranges(accept)
    return _weight(ranges, first) > _weight(ranges, second)


def accepts(accept_encoding: str, coding: str) -> bool:
    """Whether the header names a coding of content, such as `gzip`, and does not refuse it."""
    return dict(_ranges(accept_encoding)).get(coding, 0.0) > 0


def _ranges(header: str) -> list[tuple[str, float]]:
    if len(header) > _MAX_CHARACTERS:
        return []
    return [_read(part) for part in header.lower().split(",", _MAX_RANGES)[:_MAX_RANGES]]


def _weight(ranges: list[tuple[str, float]], media_type: str) -> float:
    """The weight of the most specific range that contains a media type."""
    weights = dict(ranges)
    for name in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
        if name in weights:
            return weights[name]
    return 0.0


def _read(part: str) -> tuple[str, float]:
    """A range and its weight."""
    name, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return "", 0.0
            return name, weight if 0 <= weight <= 1 else 0.0
    return name, 1.0
