"""Cut inputs to the operator's limits, for clients that request it."""

from collections.abc import Sequence
from typing import Literal

from sruserve.server.repository.encoding import Ids

Side = Literal["Left", "Right"]


def cut_text(text: str, max_bytes: int, side: Side) -> str:
    """Cut a text to `max_bytes` of UTF-8, at the boundary of a character."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    part = data[:max_bytes] if side == "Right" else data[-max_bytes:]
    return part.decode(errors="ignore")


def cut_ids(ids: Sequence[Ids], max_steps: int, side: Side) -> list[list[int]] | None:
    """The cut ids of one text or a pair, or None if they fit.

    max_steps: of both texts of a pair together; the longer text is cut first.
    """
    if sum(map(len, ids)) <= max_steps:
        return None
    if len(ids) == 1:
        return [_cut(ids[0], max_steps, side)]
    first, second = ids
    first_steps = min(len(first), max(max_steps - len(second), max_steps // 2))
    return [_cut(first, first_steps, side), _cut(second, max_steps - first_steps, side)]


def _cut(ids: Ids, max_steps: int, side: Side) -> list[int]:
    begin = 0 if side == "Right" else max(0, len(ids) - max_steps)
    part: list[int] = ids[begin : begin + max_steps].tolist()
    return part
