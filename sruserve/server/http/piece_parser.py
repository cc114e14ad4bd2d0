"""Parse the received bytes of an HTTP connection in small pieces, and in turns with the others."""

import asyncio
from collections.abc import Hashable
from typing import cast

import httptools

from sruserve.server.http.heads import (
    MAX_HEAD_BYTES,
    MAX_UPGRADE_BYTES,
    announces_body,
    exceeds_limits,
    too_large,
    upgrade_bytes,
    without_upgrade,
)
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import REQUEST_COST, ParseTurns
from sruserve.server.http.received_bytes import ReceivedBytes
from sruserve.server.http.request_queue import MAX_PIPELINED

_END = b"\r\n\r\n"  # of a head, and of a chunked body
# The parser cannot stop within a piece, so a piece has at most one head, and few chunks.
_PIECE_BYTES, _CHUNKS_PIECE_BYTES = 1 << 10, 4 << 10
_BODY_PIECE_BYTES = 16 << 10  # of a body whose length is known
# In units of `ParseTurns`. A piece costs this, and one unit for each byte outside of a body.
_PIECE_COST = 256
_BODY_BYTES_PER_COST = 64
_COST_PER_UPGRADE_BYTE = 8


class PieceParser(ReceivedBytes):
    """A connection that takes turns to parse and to begin requests. httptools parses.

    The only upgrade is to a WebSocket: a head that requests another is parsed again without it.
    """

    _turns: ParseTurns
    url = b""
    _body_bytes = 0  # of the body, as far as it is parsed
    _piece_body_bytes = 0  # those of the last piece
    _bad_request = "Invalid HTTP request received."  # the reply to a malformed request

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless this turn has parsed enough or too many requests wait."""
        if self._discards:
            return
        self._received += len(data)
        if self._unparsed:
            self._unparsed += data
            self.flow.hold()
        elif (
            len(data) <= _PIECE_BYTES
            and self._turns.budget > 0
            and (self._running is None or not self._is_pipelined())
            and data.count(_END) < 2  # each head is a piece of its own
        ):
            self._parse_piece(data)
        else:
            self._unparsed += data
            self._parse()
        if self._in_body or self._parser_bytes or self._unparsed or self.pipeline:
            self._count()

    def claim(self, owner: Hashable) -> None:
        """Count the bytes for an owner, a tenant or a client's address; raises `Overloaded`."""
        if not self.detached:
            before = self._buffer_account.owner
            self._buffer_account.claim(owner)
            if self._unparsed and self._buffer_account.owner != before:
                self._turns.move(self)

    @property
    def waiting(self) -> Waiting:
        """What of the connection waits."""
        return self.kind_of(len(self._unparsed))

    def kind_of(self, size: int) -> Waiting:
        """What `size` received bytes are that wait."""
        if self._is_pipelined():
            return Waiting.LONG
        if size <= _PIECE_BYTES:
            return Waiting.SHORT
        return Waiting.LONG if self._in_body else Waiting.HEAD

    def parse_more(self) -> None:
        """Take this connection's turn: begin a request, or parse a piece of the waiting bytes."""
        if self._is_lingering or self.transport.is_closing():
            self._unparsed.clear()
        else:
            self._begin_or_parse()
        if not self._unparsed:
            self.flow.release()
        if not self.detached and not self._discards:
            self._count()

    def _begin_or_parse(self) -> None:
        running = self._running
        if self._may_begin():
            self._begin_next()
        elif self._may_parse():
            self._parse_next()
        if self._running is not running:
            self._turns.spend(REQUEST_COST, self.owner)
        if self._may_begin() or self._may_parse():
            self._turns.wait(self)

    def _parse(self) -> None:
        while self._may_parse():
            if self._turns.budget <= 0 or self._is_pipelined():
                self._turns.wait(self)
                return
            self._parse_next()
        if not self._unparsed:
            self.flow.release()

    def _is_pipelined(self) -> bool:
        """Whether received bytes follow a request that is not answered: they wait for a turn."""
        return bool(self.pipeline) or not (self._in_body or self._is_free())

    def _may_parse(self) -> bool:
        return bool(self._unparsed) and len(self.pipeline) < MAX_PIPELINED

    def _parse_next(self) -> None:
        size = min(self._length() - self._body_bytes, _BODY_PIECE_BYTES) if self._in_body else 0
        if size <= 0:
            max_bytes = _CHUNKS_PIECE_BYTES if self._in_body else _PIECE_BYTES
            end = self._unparsed.find(_END, 0, max_bytes)
            size = end + len(_END) if end >= 0 else max_bytes
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._parse_piece(piece)

    def _length(self) -> int:
        """The length of the current body; 0: unknown."""
        for name, value in self.headers:
            if name == b"transfer-encoding":
                return 0
            if name == b"content-length":
                return int(value)
        return 0

    def _parse_piece(self, piece: bytes) -> None:
        earlier, self._piece_body_bytes = self._parser_bytes, 0
        self._parser_bytes += len(piece)
        self._feed(piece)
        if self._in_body and self._piece_body_bytes and self.cycle is not None:
            self.cycle.message_event.set()  # the application reads a part of the body
        cost = len(piece) - self._piece_body_bytes + self._piece_body_bytes // _BODY_BYTES_PER_COST
        self._turns.spend(_PIECE_COST + cost, self._buffer_account.owner)
        if earlier and not self._parser_bytes:  # at its end, the parser reads a head again
            self._turns.spend(earlier, self.owner)
        if self._parser_bytes and self._is_head_too_large():
            self._refuse_head()

    def _is_head_too_large(self) -> bool:
        return self._parser_bytes > MAX_HEAD_BYTES or exceeds_limits(self.url, self.headers)

    def _refuse_head(self) -> None:
        self._stop_parsing()
        self._answer(too_large())

    def _feed(self, data: bytes) -> None:
        """Parse data. Nothing is logged, so that no client can fill the log."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.scope["method"] == "CONNECT":
                    self._hang_up("This server is not a proxy.")
                    return
                size, rest = upgrade_bytes(self.headers), data[upgrade.args[0] :]
                if size > MAX_UPGRADE_BYTES:
                    self._refuse_head()
                    return
                if self._opens_websocket():
                    self._turns.spend(size * _COST_PER_UPGRADE_BYTE, self.owner)
                    rest, self._unparsed, self._in_body = rest + self._unparsed, bytearray(), False
                    self.handle_websocket_upgrade()
                    self._forget_request()
                    self.parser = None  # type: ignore[assignment]  # it refers to this protocol
                    cast(asyncio.Protocol, self.transport.get_protocol()).data_received(rest)
                    return
                # The parser takes the body for another protocol: parse again without the upgrade.
                version = self.parser.get_http_version()
                head = without_upgrade(self.scope["method"], self.url, version, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + rest
            except httptools.HttpParserError:
                if self._is_head_too_large():
                    self._refuse_head()
                else:
                    self._hang_up(self._bad_request)
                return

    def _opens_websocket(self) -> bool:
        """Whether the head alone requests a WebSocket and all earlier requests are answered."""
        is_upgrade = self.scope["method"] == "GET" and self._get_upgrade() == b"websocket"
        if not is_upgrade or self.scope["http_version"] != "1.1" or self.flow.write_paused:
            return False
        if announces_body(self.headers):
            return False
        return self.cycle is None or self.cycle.response_complete

    def _should_upgrade(self) -> bool:
        return True  # only called for heads that `_feed` parses again without the upgrade

    def _hang_up(self, why: str) -> None:
        self._stop_parsing()
        self.send_400_response(why)

    def _stop_parsing(self) -> None:
        self._unparsed.clear()
        self._in_body, self._parser_bytes, self._discards = False, 0, True
