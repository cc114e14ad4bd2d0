"""Count what happens between two turns of a server's event loop."""

import asyncio
import socket
import threading
from typing import Any

import pytest


class Counted:
    """How many events of a kind there are between two turns of the server's event loop, at most.

    after: turns count when there were more events than this since `arrive`.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.max_in_turn = self.all = self._now = self.after = 0
        self._counts = True
        self._patch = patch
        self.loop: asyncio.AbstractEventLoop | None = None

    def count(self, kind: type, name: str) -> None:
        """Count the calls of a method."""
        method = getattr(kind, name)

        def counting(*args: Any) -> None:
            if self.loop is None:
                self.loop = asyncio.get_running_loop()
                self.loop.call_soon(self._beat)
            self._now += 1
            self.all += 1
            method(*args)

        self._patch.setattr(kind, name, counting)

    def _beat(self) -> None:
        if self._counts:
            self.max_in_turn = max(self.max_in_turn, self._now)
        self._counts, self._now = not self.after or self.all > self.after, 0
        if self.loop is not None:
            self.loop.call_soon(self._beat)

    def arrive(
        self,
        connections: list[socket.socket],
        data: bytes,
        *,
        after: int = 0,
        closed: bool = False,
        last: tuple[socket.socket, bytes] | None = None,
    ) -> None:
        """Let all of it come within one turn. closed: and let the clients leave behind it.

        last: another connection, and what comes over it after all others.
        """
        assert self.loop is not None
        held, gate = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            gate.wait(60)

        self.loop.call_soon_threadsafe(hold)
        assert held.wait(60)  # else the loop would read the first of it in the turns before
        for each in connections:
            each.setblocking(False)
            assert each.send(data) > len(data) // 2
            each.settimeout(60)
            if closed:
                each.close()
        if last is not None:
            last[0].sendall(last[1])
        self.max_in_turn = self.all = self._now = 0
        self.after, self._counts = after, not after
        gate.set()
