"""Read JSON whose objects contain no name twice: readers differ in which value they use."""

import json
from collections import Counter
from typing import Any

_SHOWN = 80  # characters of a name


class RepeatedName(ValueError):
    """An object contains a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"contains the name {name[:_SHOWN]!r} twice")
        self.name = name


def load_json(content: bytes | str) -> Any:
    """Parse JSON; raises `RepeatedName`, and what `json.loads` raises."""
    return json.loads(content, object_pairs_hook=_named_once)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedName(name)
    return entries
