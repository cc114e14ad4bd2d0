"""Inputs that are cut to what the operator allows, where a client wants that."""

from collections.abc import Sequence
from typing import Literal

from sruserve.server.repository.encoding import Ids

Side = Literal["Left", "Right"]


def cut_text(text: str, most_bytes: int, side: Side) -> str:
    """A text of at most so many bytes; a character that would be cut goes, too."""
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    kept = data[:most_bytes] if side == "Right" else data[-most_bytes:]
    return kept.decode(errors="ignore")


def cut_ids(ids: Sequence[Ids], most_steps: int, side: Side) -> list[list[int]] | None:
    """The ids of one text or a pair, or None if they need not be cut.

    most_steps: of a pair together. The longer one is cut first.
    """
    if sum(map(len, ids)) <= most_steps:
        return None
    if len(ids) == 1:
        return [_cut(ids[0], most_steps, side)]
    first, second = ids
    room = min(len(first), max(most_steps - len(second), most_steps // 2))
    return [_cut(first, room, side), _cut(second, most_steps - room, side)]


def _cut(ids: Ids, most: int, side: Side) -> list[int]:
    kept: list[int] = (ids[:most] if side == "Right" else ids[max(0, len(ids) - most) :]).tolist()
    return kept
