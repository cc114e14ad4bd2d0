"""The header of W3C Trace Context that says to which trace a request belongs."""

import re
from typing import NamedTuple

_MAX_LENGTH = 256  # characters; version 00 has 55
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceParent(NamedTuple):
    """The span of the client that has sent the request. sampled: the client records its trace."""

    trace_id: int
    span_id: int
    sampled: bool


def read_traceparent(header: str | None) -> TraceParent | None:
    """The parent in a header; None if there is none, or none that is valid."""
    if header is None or len(header) > _MAX_LENGTH:
        return None
    match = _HEADER.fullmatch(header.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    parent = TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    return parent if parent.trace_id and parent.span_id else None
