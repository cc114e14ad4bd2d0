"""Fields of replies, each with the type that the protocol gives it."""

from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

from sruserve.check.errors import NoAnswer

T = TypeVar("T")


def field(reply: Any, name: str, kind: type[T]) -> T:
    """A field of a JSON object; raises `NoAnswer` without it."""
    value = reply.get(name) if isinstance(reply, dict) else None
    if not isinstance(value, kind):
        raise NoAnswer(f"a reply has no {kind.__name__} {name!r}; is --protocol right?")
    return value


def texts_of(entries: Iterable[Any], name: str) -> set[str]:
    """The texts in a field of objects; other entries and other values count as none."""
    values = (entry.get(name) for entry in entries if isinstance(entry, dict))
    return {value for value in values if isinstance(value, str)}


def segment(name: str) -> str:
    """A name as one part of a path; raises `NoAnswer` if no URL can have it."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        raise NoAnswer(f"the name {name[:80]!r} has a character that no URL can have") from None


def objects(reply: Any, name: str, count: int | None = None) -> list[dict[str, Any]]:
    """A field that is a list of JSON objects, of which there are `count`."""
    values = field(reply, name, list)
    if not all(isinstance(value, dict) for value in values):
        raise NoAnswer(f"the field {name!r} of a reply has something other than objects")
    if count is not None and len(values) != count:
        raise NoAnswer(f"a reply has {len(values)} of {name!r}, not {count}")
    return values
