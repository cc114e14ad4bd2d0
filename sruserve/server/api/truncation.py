"""Inputs that are cut to what the operator allows, where a client wants that."""

from collections.abc import Sequence
from typing import Any, Literal

from sruserve.server.api.inputs import encode_input
from sruserve.server.api.served import Served

Side = Literal["Left", "Right"]


def truncate(
    served: Served, texts: Sequence[str], most_bytes: int, most_steps: int, side: Side
) -> Sequence[Any]:
    """One text or a pair, or their ids if those had to be cut.

    most_steps: of a model that reads whole inputs; of a pair together. The longer one is cut first.
    """
    short = [_cut_text(text, most_bytes, side) for text in texts]
    if served.model.network.streams:
        return short
    ids = [encode_input(served, text, None, "inputs")[0].tolist() for text in short]
    if sum(map(len, ids)) <= most_steps:
        return short
    if len(ids) == 1:
        return [_cut(ids[0], most_steps, side)]
    first, second = ids
    room = min(len(first), max(most_steps - len(second), most_steps // 2))
    return [_cut(first, room, side), _cut(second, most_steps - room, side)]


def _cut_text(text: str, most_bytes: int, side: Side) -> str:
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    kept = data[:most_bytes] if side == "Right" else data[-most_bytes:]
    return kept.decode(errors="ignore")  # a character that is cut goes, too


def _cut(ids: list[int], most: int, side: Side) -> list[int]:
    return ids[:most] if side == "Right" else ids[max(0, len(ids) - most) :]
