"""Read the origins of a setting as browsers write them, and explain the wrong ones."""

import re

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\\\s*]+", re.ASCII)
_OWN_PORTS = {"http": ":80", "https": ":443"}
_MAX_SHOWN = 100  # characters


def read_origins(listed: str) -> frozenset[str]:
    """The origins in a list with commas between them; raises `ValueError`.

    Browsers send an origin in lower case, without a path and without the scheme's own port. They
    send `null` for a page from a file. `*` stands for all.
    """
    origins = frozenset(map(_as_browsers_send, listed.split(","))) - {""}
    for origin in origins:
        if not (origin.isascii() and _ORIGIN.fullmatch(origin)):
            raise ValueError(
                f"{origin[:_MAX_SHOWN]!r} is not an origin: list scheme, host and any port, such "
                "as https://app.example.com, or *"
            )
    return origins


def _as_browsers_send(origin: str) -> str:
    origin = origin.strip().rstrip("/").lower()
    return origin.removesuffix(_OWN_PORTS.get(origin.partition("://")[0], ""))
