"""The budget of what comes in, without a connection."""

from types import SimpleNamespace
from typing import Any

import pytest

from sruserve.server.errors import Overloaded
from sruserve.server.http.intake import BufferAccount, Intake
from sruserve.server.tasks.limits import FREE_BYTES
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol


def test_the_time_of_a_message_grows_with_what_has_come_up_to_an_end() -> None:
    intake = Intake(100, grace_seconds=10, bytes_per_second=16, max_timed_bytes=1600)
    assert intake.seconds(0) == 10
    assert intake.seconds(160) == 20
    assert intake.seconds(1 << 40) == 110


def test_a_connection_holds_a_little_beside_the_budget() -> None:
    intake = Intake(100, 1, 1, 1)
    many = [BufferAccount(intake) for _ in range(10)]
    for each in many:
        each.count(FREE_BYTES)
    many[0].count(FREE_BYTES + 90)
    with pytest.raises(Overloaded):
        many[1].count(FREE_BYTES + 11)
    many[0].count(0)
    many[1].count(FREE_BYTES + 11)


def test_bytes_are_the_clients_until_a_tenant_claims_them() -> None:
    intake = Intake(100, 1, 1, 1)
    one, same, other = (BufferAccount(intake, client) for client in ("here", "here", "there"))
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
    account = BufferAccount(intake)
    account.count(FREE_BYTES + 40)
    with intake.budget.hold(60):
        assert not account.lower(FREE_BYTES + 50)
        assert intake.budget.used == 100
        assert account.lower(FREE_BYTES)
        assert intake.budget.used == 60


def test_a_message_that_is_read_after_its_socket_was_closed_counts_no_more() -> None:
    intake = Intake(1 << 20, grace_seconds=1, bytes_per_second=1, max_timed_bytes=1)
    socket = WebSocketProtocol.__new__(WebSocketProtocol)
    socket._buffer_account = BufferAccount(intake)
    socket._unparsed, socket.frames = bytearray(), []
    closed: Any = SimpleNamespace(is_closing=lambda: True, reader=SimpleNamespace(buffer=b""))
    socket.conn = socket.transport = closed
    socket._unread_bytes = FREE_BYTES + 10
    socket._buffer_account.count(socket._unread_bytes)
    socket.has_read(4)
    assert intake.budget.used == 6
    socket.has_read(FREE_BYTES + 6)
    assert intake.budget.used == 0
