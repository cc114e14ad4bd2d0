"""Long replies are rendered in pieces, to the same bytes and numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server import json_output as module
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.tasks.encode import listed

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=60,
)
LONG: list[Any] = [
    {"outputs": [[0.1] * 300] * 50, "state": None, "steps": {"a": list(range(9000))}},
    {"top": [None, *[{"a": 0.5, "b": 1}] * 9000], "text": "é" * 9000},
    [0.25] * 20_000,
    [[[1, 2], []]] * 4000,
    [{"text": "a" * 9000}] * 100,
    ["é" * 9000] * 100,
    {"text": ['"', "\n\u2028é" * 90_000]},
    [1, *["a" * 9000] * 100],
    {str(number): {"a": number} for number in range(9000)},
]


@given(ANY, st.sampled_from([1, 3, 4096]))
def test_pieces_are_the_same_json(value: Any, max_values: int) -> None:
    assert long_json(value, max_values) == json_bytes(value)


@pytest.mark.parametrize("value", LONG)
def test_no_piece_holds_many_values(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(value: object) -> bytes:
        sizes.append(leaves(value))
        return json_bytes(value)

    monkeypatch.setattr(module, "json_bytes", counted)
    assert long_json(value) == json_bytes(value)
    assert max(sizes) <= 2 * 4096
    assert len(sizes) > 1


def test_a_value_is_weighed_once_however_deep_it_is() -> None:
    weighed = 0

    class Counted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal weighed
            weighed += 1
            return super().__iter__()

    value: Any = Counted(["text"] * 9000)
    for _ in range(60):
        value = [{"properties": value}]
    long_json(value)
    assert weighed <= 4


def leaves(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(leaves, value.values()))
    if isinstance(value, str):
        return 1 + len(value) // 16
    return sum(map(leaves, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("shape", [(0,), (5,), (10_000,), (3000, 7), (2, 9000), (0, 4), (4, 0)])
def test_arrays_are_listed_as_a_whole(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert listed(array) == array.tolist()
