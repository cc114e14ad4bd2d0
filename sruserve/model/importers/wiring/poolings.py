"""Poolings of the same outputs side by side: each kind once, and the columns that parts read."""

from collections.abc import Sequence

from sruserve.model.importers.wiring.network import End, Pooling

Ranges = tuple[tuple[int, int], ...]


def joined(
    parts: Sequence[Sequence[Pooling]], width: int, last: End | None
) -> tuple[tuple[Pooling, ...], list[Ranges]]:
    """Return the poolings of all parts, and the columns of their row that each part is.

    parts: of kinds last, mean, max and final. width: of the outputs.
    last: the part of the end state that the last output is; None if it is none. The row then has
    only one of both.
    """
    ends = {part.ends for poolings in parts for part in poolings if part.kind == "final"}
    if last is not None and ends:
        kind = "last" if ends == {(last,)} else "final"
        parts = [[_as(kind, each, last) for each in poolings] for poolings in parts]
    read: list[list[tuple[str, int, int]]] = []  # kind, first column of its row, and end
    widths: dict[str, int] = {}
    final: tuple[End, ...] = ()
    for poolings in parts:
        read.append([])
        for each in poolings:
            begin = widths.get("final", 0) if each.kind == "final" else 0
            end = begin + (sum(own.width for own in each.ends) or width)
            widths[each.kind], final = end, (*final, *each.ends)
            read[-1].append((each.kind, begin, end))
    starts = {kind: sum([*widths.values()][:i]) for i, kind in enumerate(widths)}
    ranges = [
        tuple((starts[kind] + begin, starts[kind] + end) for kind, begin, end in own)
        for own in read
    ]
    return tuple(Pooling(kind, final if kind == "final" else ()) for kind in widths), ranges


def _as(kind: str, pooling: Pooling, last: End) -> Pooling:
    """Return a pooling of the last output in one of its two forms, and any other as it is."""
    if pooling.kind == "last" or pooling.ends == (last,):
        return Pooling("last") if kind == "last" else Pooling("final", (last,))
    return pooling
