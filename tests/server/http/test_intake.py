"""What clients send is bounded together and in time, and small requests always get in."""

import asyncio
import gzip
import json
import logging
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import websockets.sync.client as websockets
from websockets.exceptions import ConnectionClosed

from sruserve.server.app import Application
from sruserve.server.errors import Overloaded
from sruserve.server.http.intake import Inflow, Intake
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.kserve.http import codec as wire
from sruserve.server.kserve.http import compression, infer
from sruserve.server.offload import POOL, THREADS
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.limits import FREE_BYTES
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.server.conftest import Serve
from tests.server.http.test_clients_that_leave import metric, until
from tests.server.test_bad_input import SCORE, post, refusal

Running = tuple[httpx.Client, Application]

BUDGET = 1 << 20
LONGEST = 512 << 10
GRACE = 1.0
SECONDS = 60
CHUNKED = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[Running]:
    """A server that takes little, and is patient."""
    with serve("characters", max_queue_bytes=BUDGET, max_body_bytes=LONGEST) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(serve: Serve) -> Iterator[Running]:
    """A server that waits for no client."""
    given: dict[str, Any] = {"receive_grace_seconds": GRACE, "keep_alive_seconds": 60}
    with serve("characters", receive_bytes_per_second=1 << 16, **given) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every byte is given back."""
    yield
    for name in {"running", "hasty"} & set(request.fixturenames):
        _, application = request.getfixturevalue(name)
        until(lambda app=application: app.intake.budget.held == 0)  # type: ignore[misc]
        until(lambda app=application: app.lifecycle.active == 0)  # type: ignore[misc]
        assert application.limits.reading.held == application.limits.replies.held == 0


def connect(client: httpx.Client, data: bytes) -> socket.socket:
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.settimeout(SECONDS)
    connection.sendall(data)
    return connection


def head(length: int, *more: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in more)
    return b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n" % (length, lines)


def frame(data: bytes, size: int) -> bytes:
    """The beginning of a message of `size` bytes."""
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + data


def told(connection: socket.socket) -> bytes:
    """What a connection says until it is closed."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def code(reply: bytes) -> str:
    """The code of the error in a reply."""
    found: str = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"]
    return found


def unfinished_body(client: httpx.Client) -> socket.socket:
    return connect(client, head(LONGEST) + b"a" * (LONGEST - 1))


def unfinished_chunks(client: httpx.Client) -> socket.socket:
    return connect(client, CHUNKED + b"%x\r\n" % LONGEST + b"a" * (LONGEST - 1))


def unfinished_frame(client: httpx.Client) -> socket.socket:
    connection = connect(client, UPGRADE)
    assert b" 101 " in connection.recv(4096)
    connection.sendall(frame(b"a" * (LONGEST - 1), LONGEST))
    return connection


def unfinished_message(client: httpx.Client) -> socket.socket:
    connection = connect(client, UPGRADE)
    assert b" 101 " in connection.recv(4096)
    fragment = frame(b"a" * (LONGEST // 2), LONGEST // 2)
    connection.sendall(b"\x01" + fragment[1:] + b"\x00" + fragment[1:-1])
    return connection


UNFINISHED = [unfinished_body, unfinished_chunks, unfinished_frame, unfinished_message]


@pytest.mark.parametrize("begin", UNFINISHED)
def test_unfinished_bodies_and_frames_are_bounded_together(running: Running, begin: Any) -> None:
    client, application = running
    budget = application.intake.budget
    with ExitStack() as stack:
        opened = [stack.enter_context(begin(client)) for _ in range(4)]
        until(lambda: budget.held > BUDGET // 3)
        refused = [each for each in opened if ended(each)]
        assert len(refused) == 3  # those of one address leave half to others
        assert budget.held <= BUDGET // 2
        # small requests get in, whatever the others hold
        assert post(client, SCORE, {"input": "a" * (FREE_BYTES - 100)}).status_code == 200


def ended(connection: socket.socket) -> bool:
    """Whether the server has answered or closed a connection, after a moment."""
    connection.settimeout(0.5)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_a_body_beyond_the_budget_is_429_before_it_is_sent_and_after(running: Running) -> None:
    client, application = running
    with application.intake.budget.hold(BUDGET - 1000):
        reply = post(client, SCORE, {"input": "a" * 200_000})
        assert "SRUSERVE_MAX_QUEUE_BYTES" in refusal(reply, 429, "overloaded")
        with connect(client, CHUNKED + b"30000\r\n" + b"a" * 0x20000) as connection:
            assert code(told(connection)) == "overloaded"
        with connect(client, head(200_000, b"expect: 100-continue")) as connection:
            reply_bytes = told(connection)
            assert reply_bytes.startswith(b"HTTP/1.1 429 ")
    assert post(client, SCORE, {"input": "a" * 200_000}).status_code == 200


def test_requests_in_a_row_that_do_not_fit_end_the_connection_and_write_no_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client, application = running
    body = json.dumps({"input": "a" * 12_000}).encode()
    with application.intake.budget.hold(BUDGET - 1000):
        for rest in (b"", head(100) + b"{", b"POST /v1/sc"):
            with connect(client, 12 * (head(len(body)) + body) + rest) as connection:
                replies = told(connection)
            assert 0 < replies.count(b"HTTP/1.1 200 ") < 12
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_body_over_the_limit_is_refused_before_the_client_is_told_to_send_it(
    running: Running,
) -> None:
    client, _ = running
    with connect(client, head(LONGEST + 1, b"expect: 100-continue")) as connection:
        reply = told(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in reply
    body = b'{"model":"characters","input":"abc"}'
    with connect(client, head(len(body), b"expect: 100-continue")) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_goes_on_sending_gets_to_read_why_it_was_refused(running: Running) -> None:
    client, _ = running
    for size in (LONGEST + 1, 40 * LONGEST):
        refusal(client.post(SCORE, content=b"a" * size), 413, "body_too_large")
    with connect(client, head(LONGEST + 1)) as connection:
        connection.recv(1, socket.MSG_PEEK)
        for _ in range(4):  # it would be reset if the server had closed it
            connection.sendall(b"a" * (LONGEST // 4))
            time.sleep(0.05)
        assert told(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "begin",
    [b"POST /v1/sc", head(100), head(100) + b"{", head(100_000) + b"a" * 20_000,
     CHUNKED + b"5\r\n{", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ", CHUNKED + b"0\r\nx: y\r\n"],
    ids=["path", "no body", "a byte", "many", "a chunk", "a header", "trailers"],
)  # fmt: skip
def test_a_request_that_comes_too_slowly_is_408(hasty: Running, begin: bytes) -> None:
    with connect(hasty[0], begin) as connection:
        reply = told(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert code(reply) == "request_timeout"
    assert b"connection: close" in reply


def test_a_byte_now_and_then_keeps_no_request_alive(hasty: Running) -> None:
    with connect(hasty[0], head(100_000)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = 0
        try:
            while not ended_now(connection) and sent < 200:
                connection.sendall(b"a")
                sent += 1
                time.sleep(GRACE / 10)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert 0 < sent < 200


def ended_now(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK)) or True
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(SECONDS)


@pytest.mark.parametrize("data", [b"\x81", frame(b"{", 100), b"\x01\x81" + bytes(4) + b"{"])
def test_a_message_that_comes_too_slowly_closes_its_socket(hasty: Running, data: bytes) -> None:
    with connect(hasty[0], UPGRADE) as connection:
        assert b" 101 " in connection.recv(4096)
        connection.sendall(data)
        reply = told(connection)
    assert reply.endswith(b"\x03\xf0request_timeout")  # 1008


def test_an_idle_socket_and_an_idle_connection_have_no_such_time(hasty: Running) -> None:
    client, _ = hasty
    url = f"{client.base_url}/v1/stream".replace("http", "ws", 1)
    with websockets.connect(url, compression=None) as connection:
        for _ in range(2):
            connection.send('{"model":"characters","input":"a"}')
            if "error" in connection.recv(SECONDS):
                connection.send('{"input":"a"}')
                assert "steps" in connection.recv(SECONDS)
            assert post(client, SCORE, {"input": "a"}).status_code == 200
            time.sleep(2 * GRACE)


def test_a_body_that_ends_after_its_reply_leaves_an_idle_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    replied: list[HttpProtocol] = []
    on_response_complete = HttpProtocol.on_response_complete

    def see(protocol: HttpProtocol) -> None:
        on_response_complete(protocol)
        replied.append(protocol)

    monkeypatch.setattr(HttpProtocol, "on_response_complete", see)
    with connect(client, CHUNKED.replace(b"POST /v1/score", b"GET /livez")) as connection:
        assert b" 200 " in connection.recv(4096)
        until(lambda: bool(replied))
        (protocol,) = replied
        idle_until = protocol._idle_until
        connection.sendall(b"0\r\n" + (b"x: %b\r\n" % (b"y" * 240)) * 200)
        until(lambda: application.intake.budget.held > 0)
        connection.sendall(b"\r\n")
        until(lambda: application.intake.budget.held == 0)
        until(lambda: protocol._idle_until not in (None, idle_until))
        assert protocol in protocol._place.idle


def test_a_trailer_is_not_read_as_a_header(running: Running) -> None:
    client, _ = running
    data = CHUNKED + b"1\r\n{\r\n0\r\nx-request-id: trailer\r\n\r\n"
    with connect(client, data) as connection:
        reply = connection.recv(4096)
    assert b"x-request-id: " in reply
    assert b"trailer" not in reply


def test_an_honest_upload_works(hasty: Running) -> None:
    client, _ = hasty
    body = b'{"model":"absent","input":"' + b"a" * (1 << 20) + b'"}'

    def slowly() -> Iterator[bytes]:
        for at in range(0, len(body), 1 << 17):
            yield body[at : at + (1 << 17)]
            time.sleep(GRACE / 10)

    assert client.post(SCORE, content=slowly()).status_code == 404  # it was read to its end


def test_a_body_waits_for_no_clock_while_it_waits_for_the_server(hasty: Running) -> None:
    """A request behind another one is not read until that is answered."""
    client, application = hasty
    engine = application.lifecycle.catalogue["characters"].engine
    long = {"model": "characters", "prompt": "a", "max_tokens": 800, "stop": "\x7f"}
    first = json.dumps(long).encode()
    second = b'{"model":"absent","input":"' + b"a" * 900_000 + b'"}'
    data = head(len(first)).replace(b"/v1/score", b"/v1/completions") + first
    with connect(client, data) as connection:
        until(lambda: engine.running == 1)
        connection.setblocking(False)
        request, sent = head(len(second)) + second, 0
        deadline = time.monotonic() + SECONDS
        replies = b""
        while b"model_not_found" not in replies and time.monotonic() < deadline:
            with suppress(BlockingIOError):
                sent += connection.send(request[sent : sent + 65536]) if sent < len(request) else 0
            try:
                replies += connection.recv(65536)
            except BlockingIOError:
                time.sleep(0.01)
    assert [replies.count(b"HTTP/1.1 %d " % status) for status in (200, 404)] == [1, 1]


def test_the_bytes_of_a_key_are_bounded_and_unknown_keys_hold_none(serve: Serve) -> None:
    keys = "greedy:greedy-key,modest:modest-key"
    limits = {"max_queue_bytes": BUDGET, "max_body_bytes": LONGEST}
    with serve("characters", api_keys=keys, **limits) as (client, application):
        budget = application.intake.budget
        with connect(client, head(LONGEST, b"authorization: Bearer wrong-key")) as wrong:
            wrong.sendall(b"a" * 100_000)
            assert code(told(wrong)) == "invalid_api_key"
        until(lambda: budget.held == 0)
        key = b"authorization: Bearer greedy-key"
        with connect(client, head(LONGEST, key) + b"a" * (LONGEST - 1)):
            until(lambda: budget.held > LONGEST // 2)
            for name, status in (("greedy-key", 429), ("modest-key", 200)):
                client.headers["authorization"] = f"Bearer {name}"
                assert post(client, SCORE, {"input": "a" * 200_000}).status_code == status


def test_a_body_that_waited_behind_a_request_counts_until_it_is_read(running: Running) -> None:
    client, application = running
    engine = application.lifecycle.catalogue["characters"].engine
    body = json.dumps({"prompt": "a" * 40_000, "max_tokens": 5000, "stop": "\x7f"}).encode()
    second = head(len(body)).replace(b"/v1/score", b"/v1/completions") + body
    with connect(client, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" + second):
        until(lambda: engine.running == 1)
        assert application.intake.budget.held == 0


def test_complete_bodies_that_wait_for_a_thread_are_bounded_together(running: Running) -> None:
    client, application = running
    gate, body = threading.Event(), json.dumps({"input": "a" * 400_000}).encode()

    async def occupy() -> None:
        await asyncio.gather(*(POOL.run(lambda: gate.wait(60), 1) for _ in range(THREADS)))

    occupied = threading.Thread(target=lambda: asyncio.run(occupy()))
    occupied.start()
    with ExitStack() as stack:
        stack.callback(occupied.join)
        stack.callback(gate.set)
        one = head(len(body)) + body
        two = one.replace(b"/v1/score", b"/v2/models/characters/infer", 1)
        waiting, reading = [], application.limits.reading
        for number, request in enumerate((one, two), 1):
            waiting.append(stack.enter_context(connect(client, request)))
            until(lambda number=number: reading.held == number * len(body))  # type: ignore[misc]
        for request, status in ((one, b"429"), (two, b"503")):
            with connect(client, request) as refused:
                assert refused.recv(12).endswith(status)
        gate.set()
        assert [each.recv(12)[-3:] for each in waiting] == [b"200", b"400"]


def packed_inference(name: str, size: int) -> bytes:
    """A request whose body is much shorter than the `size` bytes that it unpacks to."""
    text = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    json_bytes = json.dumps({"inputs": [text], "parameters": {"max_tokens": 1}}).encode()
    plain = json_bytes.ljust(size)
    body = gzip.compress(plain) if name == "gzip" else zlib.compress(plain)
    assert len(body) < FREE_BYTES
    return (
        f"POST /v2/models/characters/infer HTTP/1.1\r\nhost: x\r\ncontent-encoding: {name}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_packed_bodies_count_with_what_they_unpack_to(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    client, application = running
    reading = application.limits.reading
    large, small = packed_inference(name, LONGEST), packed_inference(name, FREE_BYTES)
    go_on, before, grown = threading.Event(), list[int](), list[tuple[int, int]]()
    parse, unpack = wire.read_request, compression.Unpacking.unpack

    def count_and_wait(*given: Any) -> Any:
        before.append(reading.held)
        assert go_on.wait(SECONDS)
        return parse(*given)

    def count_and_unpack(unpacking: compression.Unpacking) -> None:
        held = reading.held
        unpack(unpacking)
        grown.append((held, unpacking.size))

    monkeypatch.setattr(compression.Unpacking, "unpack", count_and_unpack)
    monkeypatch.setattr(infer, "read_request", count_and_wait)
    with ExitStack() as stack:
        with connect(client, large) as alone:
            until(lambda: before == [LONGEST])
            go_on.set()
            assert alone.recv(12).endswith(b"200")
        assert all(size <= max(held, FREE_BYTES) for held, size in grown)
        stack.enter_context(reading.hold(BUDGET - LONGEST // 2))
        with connect(client, large) as refused:
            assert refused.recv(12).endswith(b"503")
        with connect(client, small) as free:
            assert free.recv(12).endswith(b"200")


def test_a_prompt_that_waits_for_its_constraint_counts_until_its_job_is_queued(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    engine = application.lifecycle.catalogue["characters"].engine
    go_on = threading.Event()

    async def wait(*_: Any) -> None:
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(ConstraintCache, "of", wait)
    body = json.dumps({"prompt": "a" * 40_000, "max_tokens": 5000, "stop": "\x7f"}).encode()
    data = head(len(body)).replace(b"/v1/score", b"/v1/completions") + body
    with connect(client, data):
        until(lambda: application.limits.reading.held == len(body))
        go_on.set()
        until(lambda: engine.running == 1)
        assert application.limits.reading.held == 0


def test_messages_that_wait_in_a_socket_count_until_they_are_read(running: Running) -> None:
    client, application = running
    url = f"{client.base_url}/v1/stream".replace("http", "ws", 1)
    begin = '{"model":"characters","prompt":"a","max_tokens":50000}'
    message = json.dumps({"input": "a" * (LONGEST // 2)})
    with websockets.connect(url, compression=None, close_timeout=0) as connection:
        connection.send(begin)
        connection.send(message)
        until(lambda: application.intake.budget.held > LONGEST // 2 - FREE_BYTES - 100)
        time.sleep(0.1)  # it stays so
        assert application.intake.budget.held > LONGEST // 2 - FREE_BYTES - 100
    with ExitStack() as stack:
        for _ in range(4):
            connection = websockets.connect(url, compression=None, close_timeout=0)
            stack.enter_context(connection)
            with suppress(ConnectionClosed):  # this one is beyond the limit
                for text in (begin, message, message):
                    connection.send(text)
        until(lambda: metric(client, "sru_sockets") < 4)
        assert metric(client, "sru_sockets") > 0
        until(lambda: BUDGET // 4 < application.intake.budget.held <= BUDGET // 2)


@pytest.mark.parametrize("count", [1, 2])
def test_the_frame_in_work_and_those_that_wait_end_with_their_client(
    serve: Serve, count: int
) -> None:
    size = LONGEST // 4
    score = b'{"model":"characters","input":"%b"}' % (b"a" * size)
    with serve("characters", max_batch_tokens=1) as (client, application):
        engine = application.lifecycle.catalogue["characters"].engine
        with connect(client, UPGRADE) as connection:
            assert b" 101 " in connection.recv(4096)
            connection.sendall(frame(score, len(score)))
            until(lambda: engine.running == 1)
            for _ in range(count):
                connection.sendall(frame(score, len(score)))
            until(lambda: application.intake.budget.held >= count * size - FREE_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: engine.running == 0 and application.lifecycle.active == 0)
        assert metric(client, "sru_sockets") == 0


def test_the_time_of_a_message_grows_with_what_has_come_up_to_an_end() -> None:
    intake = Intake(100, grace_seconds=10, bytes_per_second=16, most=1600)
    assert intake.seconds(0) == 10
    assert intake.seconds(160) == 20
    assert intake.seconds(1 << 40) == 110


def test_a_connection_holds_a_little_beside_the_budget() -> None:
    intake = Intake(100, 1, 1, 1)
    many = [Inflow(intake) for _ in range(10)]
    for each in many:
        each.count(FREE_BYTES)
    many[0].count(FREE_BYTES + 90)
    with pytest.raises(Overloaded):
        many[1].count(FREE_BYTES + 11)
    many[0].count(0)
    many[1].count(FREE_BYTES + 11)


def test_bytes_are_the_clients_until_a_tenant_claims_them() -> None:
    intake = Intake(100, 1, 1, 1)
    one, same, other = (Inflow(intake, client) for client in ("here", "here", "there"))
    one.count(FREE_BYTES + 30)
    with pytest.raises(Overloaded):
        same.count(FREE_BYTES + 30)
    other.count(FREE_BYTES + 30)
    one.claim("tenant")
    same.count(FREE_BYTES + 30)
    with pytest.raises(Overloaded):
        same.claim("tenant")
    same.count(FREE_BYTES + 40)  # it is still the client's
    same.count(0)
    one.claim(None)
    with pytest.raises(Overloaded):
        same.count(FREE_BYTES + 30)


def test_to_count_less_is_never_refused() -> None:
    intake = Intake(100, 1, 1, 1)
    inflow = Inflow(intake)
    inflow.count(FREE_BYTES + 40)
    with intake.budget.hold(60):
        assert not inflow.lower(FREE_BYTES + 50)
        assert intake.budget.held == 100
        assert inflow.lower(FREE_BYTES)
        assert intake.budget.held == 60


def test_a_message_that_is_read_after_its_socket_was_closed_counts_no_more() -> None:
    intake = Intake(1 << 20, grace_seconds=1, bytes_per_second=1, most=1)
    socket = WebSocketProtocol.__new__(WebSocketProtocol)
    socket._inflow = Inflow(intake)
    socket._unparsed, socket.frames = bytearray(), []
    closed: Any = SimpleNamespace(is_closing=lambda: True, reader=SimpleNamespace(buffer=b""))
    socket.conn = socket.transport = closed
    socket._with_app = FREE_BYTES + 10
    socket._inflow.count(socket._with_app)
    socket.has_read(4)
    assert intake.budget.held == 6
    socket.has_read(FREE_BYTES + 6)
    assert intake.budget.held == 0
