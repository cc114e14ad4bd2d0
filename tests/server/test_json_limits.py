"""A body of millions of tiny parts is refused before it is read, in every protocol."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.errors import InputTooLong
from sruserve.server.json_limits import (
    MAX_JSON_CONTAINERS,
    MAX_JSON_VALUES,
    _counted,
    _without_strings,
    check_json_size,
)
from tests.server.websocket.sockets import open_socket

LONGEST = 8 << 20  # bytes of a body
# What reading them would take is 0.1 to 6 seconds; a value takes less than a list.
TINY = ["[]", "{}", "[0]", '[0,""]', "[{},{}]", "0"]


def filled(before: str, item: str) -> bytes:
    """A body of 8 MB: a list of `item`, and what stands before it."""
    room = LONGEST - len(before) - 2
    items = ",".join([item] * (room // (len(item) + 1)))
    return f"{before}[{items}]}}".encode()


@contextmanager
def at_once(client: httpx.Client) -> Iterator[None]:
    """The server's event loop needs little time, receiving included."""
    url = str(client.base_url).rstrip("/")
    (server,) = (each for each in threading.enumerate() if each.name == url)
    assert server.ident is not None
    clock = time.pthread_getcpuclockid(server.ident)
    begin = time.clock_gettime(clock)
    yield
    assert time.clock_gettime(clock) - begin < 1


@pytest.mark.parametrize("item", TINY)
@pytest.mark.parametrize(
    ("path", "before"),
    [
        ("/v1/score", '{"model":"characters","input":'),
        ("/v1/completions", '{"model":"characters","prompt":'),
        ("/v1/classify", '{"model":"sensor","features":'),
        ("/v1/classify", '{"model":"question","input":"a","unknown":'),
        ("/v1/streams", '{"model":"question","unknown":'),
        ("/predict?model=question", '{"inputs":'),
        ("/v2/models/question/infer", '{"inputs":'),
        ("/v2/repository/index", '{"ready":'),
    ],
)
def test_very_many_parts_are_refused_at_once_over_http(
    client: httpx.Client, path: str, before: str, item: str
) -> None:
    body = filled(before, item)
    with at_once(client):
        reply = client.post(path, content=body)
    assert reply.status_code == (400 if path.startswith("/v2") else 422), reply.text
    assert "the request has more than" in reply.text


@pytest.mark.parametrize("item", TINY)
def test_very_many_parts_are_refused_at_once_in_a_step_of_a_stream(
    client: httpx.Client, item: str
) -> None:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    body = filled('{"step":1,"input":', item)
    with at_once(client):
        reply = client.post(f"/v1/streams/{stream}/steps", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "input_too_long")
    assert client.get(f"/v1/streams/{stream}").json()["step"] == 0


@pytest.mark.parametrize("item", TINY)
def test_very_many_parts_are_refused_at_once_in_a_frame(client: httpx.Client, item: str) -> None:
    body = filled('{"model":"question","input":', item).decode()
    with open_socket(client) as socket:
        with at_once(client):
            socket.send(body)
            reply = json.loads(socket.recv())
        assert reply["error"]["code"] == "input_too_long"
        socket.send('{"model": "question", "input": "a"}')
        assert json.loads(socket.recv())["usage"] == {"steps": 0}  # a word that is held back


def test_the_header_of_binary_tensors_is_bounded_and_what_follows_is_not(
    client: httpx.Client,
) -> None:
    tensor = {"name": "features", "shape": [10_000, 8], "datatype": "FP32"}
    size = 4 * 10_000 * 8
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()
    for body, length, status in (
        (head + b"[{{:" * (size // 4), len(head), 200),
        (head + b"[{{:" * (size // 4), len(head) + size, 400),
    ):
        reply = client.post(
            "/v2/models/sensor/infer",
            content=body,
            headers={"inference-header-content-length": str(length)},
        )
        assert reply.status_code == status, reply.text
        assert ("the request has more than" in reply.text) is (status == 400)


def test_texts_may_hold_any_number_of_brackets() -> None:
    for text in ("[" * LONGEST, ',"\\' * (LONGEST // 6), "{:}\n" * (LONGEST // 5)):
        check_json_size(json.dumps({"input": text}).encode())


def parts_of(value: Any) -> int:
    """How many lists, objects and fields a value has."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(parts_of, value.values()))
    return 1 + sum(map(parts_of, value)) if isinstance(value, list) else 0


NASTY = st.text(st.sampled_from('[]{}:,"\\a'), max_size=9)
ANY = st.recursive(
    st.none() | st.integers() | NASTY,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NASTY, inner, max_size=5),
    max_leaves=30,
)


def commas_of(value: Any) -> int:
    """How many commas its JSON has outside of texts."""
    if isinstance(value, dict):
        return max(0, len(value) - 1) + sum(map(commas_of, value.values()))
    if isinstance(value, list):
        return max(0, len(value) - 1) + sum(map(commas_of, value))
    return 0


@settings(max_examples=20)
@given(ANY)
def test_what_stands_in_texts_does_not_count(value: Any) -> None:
    """Enough copies to be over the bound by little, or not to be, whatever texts they hold."""
    parts = parts_of(value)
    copies = MAX_JSON_CONTAINERS // parts if parts else 1000
    for count in (copies - 1, copies + 1):
        body = json.dumps([value] * count).encode()
        expected = {"lists": parts * count + 1, "values": (1 + commas_of(value)) * count}
        bounds = {"lists": MAX_JSON_CONTAINERS, "values": MAX_JSON_VALUES}
        if beyond := [what for what in expected if expected[what] > bounds[what]]:
            with pytest.raises(InputTooLong, match="|".join(beyond)):
                check_json_size(body)
        else:
            check_json_size(body)


@given(ANY, st.integers(1, 9))
def test_a_body_may_be_looked_at_in_any_pieces(value: Any, size: int) -> None:
    body = json.dumps(value).encode()
    *_, counts = _counted(_without_strings(body, size), count_digits=False)
    assert counts == (parts_of(value), 1 + commas_of(value), 0)


@pytest.mark.parametrize(
    ("count", "digits", "fits"),
    [(1, 4 << 20, False), (1000, 4000, False), (700, 4000, True), (MAX_JSON_VALUES - 1, 20, True)],
)
def test_integers_of_thousands_of_digits_are_bounded_together(
    count: int, digits: int, fits: bool
) -> None:
    body = b'{"input":[' + b",".join([b"1" * digits] * count) + b"]}"
    if fits:
        check_json_size(body)
        return
    with pytest.raises(InputTooLong, match="digits"):
        check_json_size(body)
    check_json_size(json.dumps({"input": body.decode()}).encode())


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r\n", b"\t"])
def test_white_space_is_bounded_but_in_texts(space: bytes) -> None:
    white_space = space * (4 << 20)
    with pytest.raises(InputTooLong, match="white space"):
        check_json_size(b'{"input":"a"' + white_space + b"}")
    check_json_size(b'{"input":"' + white_space + b'"}')
    check_json_size(b'{"input":"a"' + white_space[: 2 << 20] + b"}")
