"""Encrypt one connection: a transport with the limits of the plain one that it writes to."""

import asyncio
import ssl
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any, cast

from sruserve.server.http.intake import BufferAccount, Intake, ReceiveLimits
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import ParseTurns

_RECORD_BYTES = 16 << 10  # the longest record
_NOBODY, _NOTHING = asyncio.Protocol(), memoryview(b"")
# Decrypted at once. A record without content, such as a new key, takes up to 10 µs for its 27
# bytes, so bytes that are not content cost a turn; but a record may be incomplete.
_PIECE_BYTES = 4 << 10
_COST_PER_BYTE = 2
_UNPAID_BYTES = _RECORD_BYTES + (1 << 10)
# Answers that a client may ask for without reading them: each keeps several times its own bytes.
_ANSWER_BYTES = 4 << 10
# The memory of a client's chain of certificates, as long as the connection is open; one of usual
# size does not count.
_MEMORY_PER_HANDSHAKE_BYTE = 12
_USUAL_HANDSHAKE_BYTES = 4 << 10


class TlsTransport(asyncio.Protocol):
    """The protocol of a plain transport, and the transport of the protocol above it.

    asyncio's own TLS has buffers of its own, beyond the limits of `WriteTimeout` and `Intake`, and
    cannot close one direction. Here, encrypted bytes wait in the plain transport alone, which
    pauses the protocol as it would without TLS. Received bytes are decrypted at once, or wait for
    a turn if many bring no content, and count as the protocol's meanwhile.

    tls: has finished its handshake; it reads from `incoming`, and writes to `outgoing`.
    """

    _encrypted = _NOTHING  # waits for a turn
    _is_held = _is_paused = False  # reading, until that turn, and by the protocol
    _unpaid = 0  # received bytes that were no content
    _unread_answers = 0  # bytes of TLS' own answers since the client has last read all
    _has_ended = False  # close_notify is sent
    _discards = False  # received bytes are dropped, and nothing can be decrypted any more
    _handshake_account: BufferAccount | None = None  # counts the client's certificates

    def __init__(
        self,
        plain: asyncio.Transport,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        protocol: asyncio.Protocol,
        turns: ParseTurns,
    ) -> None:
        self._turns = turns
        self._plain, self._tls, self._protocol = plain, tls, protocol
        self._incoming, self._outgoing = incoming, outgoing
        self.abort, self.is_closing = plain.abort, plain.is_closing
        self.get_write_buffer_size = plain.get_write_buffer_size
        self.set_write_buffer_limits = plain.set_write_buffer_limits

    @property
    def owner(self) -> Hashable:
        """The owner of the connection."""
        return getattr(self._protocol, "owner", None)

    @property
    def waiting(self) -> Waiting:
        """What of the connection waits."""
        return cast(ReceiveLimits, self._protocol).kind_of(len(self._encrypted))

    def count_handshake(self, size: int, intake: Intake) -> None:
        """Count what a client's handshake of `size` bytes leaves; raises `Overloaded`."""
        if size > _USUAL_HANDSHAKE_BYTES:
            self._handshake_account = BufferAccount(intake, self.owner)
            self._handshake_account.count(
                (size - _USUAL_HANDSHAKE_BYTES) * _MEMORY_PER_HANDSHAKE_BYTE
            )

    def data_received(self, data: bytes) -> None:
        """Decrypt, or wait for a turn."""
        if self._discards:
            return
        if len(data) <= _PIECE_BYTES and not self._encrypted and self._turns.budget > 0:
            self._decrypt(data)
        else:
            self._encrypted = memoryview(bytes(self._encrypted) + data)
            self._decrypt_pieces()

    def parse_more(self) -> None:
        """Take this connection's turn."""
        if not self.is_closing():
            self._decrypt_piece()
        self._wait_or_go_on()

    def _decrypt_pieces(self) -> None:
        while self._encrypted and self._turns.budget > 0 and not self.is_closing():
            self._decrypt_piece()
        self._wait_or_go_on()

    def _wait_or_go_on(self) -> None:
        if self.is_closing():
            self._encrypted = _NOTHING
        elif self._encrypted:
            self._hold()
        else:
            self._release()

    def _decrypt_piece(self) -> None:
        piece, self._encrypted = self._encrypted[:_PIECE_BYTES], self._encrypted[_PIECE_BYTES:]
        self._decrypt(piece)

    def _hold(self) -> None:
        # all of them are in memory until the last one is decrypted
        size = len(cast(bytes, self._encrypted.obj))
        if not cast(ReceiveLimits, self._protocol).count_undecrypted(size):
            self._discards, self._encrypted = True, _NOTHING
            self._release()
            return
        self._turns.wait(self)
        if not self._is_held:
            self._is_held = True
            if not self._is_paused:
                self._plain.pause_reading()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            cast(ReceiveLimits, self._protocol).count_undecrypted(0)
            if not self._is_paused:
                self._plain.resume_reading()

    def pause_reading(self) -> None:
        """Pause reading for the protocol."""
        self._is_paused = True
        if not self._is_held:
            self._plain.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading for the protocol."""
        self._is_paused = False
        if not self._is_held:
            self._plain.resume_reading()

    def _decrypt(self, data: bytes | memoryview) -> None:
        """Decrypt records; an incomplete one waits for its rest."""
        self._incoming.write(data)
        parts, has_ended = [], False
        try:
            while part := self._tls.read(_RECORD_BYTES):
                parts.append(part)
            has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # both sides have sent close_notify
            has_ended = True
        except ssl.SSLError:
            self.abort()
            return
        if self._outgoing.pending and not self._answer(self._outgoing.read()):
            return
        content = b"".join(parts)
        self._pay(len(data) - len(content))
        if content:
            self._protocol.data_received(content)
        if has_ended and not self.is_closing():
            self.eof_received()

    def _answer(self, data: bytes) -> bool:
        """Write an answer of TLS itself, such as a new key. A client that reads none is cut off."""
        if not self._plain.get_write_buffer_size():
            self._unread_answers = 0
        self._unread_answers += len(data)
        if self._unread_answers > _ANSWER_BYTES:
            self.abort()
            return False
        self._plain.write(data)
        return True

    def _pay(self, size: int) -> None:
        self._unpaid += size
        if self._unpaid > _UNPAID_BYTES:
            self._turns.spend((self._unpaid - _UNPAID_BYTES) * _COST_PER_BYTE, self.owner)
            self._unpaid = _UNPAID_BYTES

    def eof_received(self) -> None:
        """Close, after the protocol has limited the time for unsent bytes."""
        self._protocol.eof_received()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss, and free the connection."""
        self._turns.forget(self)
        self._encrypted = _NOTHING
        if self._handshake_account is not None:
            self._handshake_account.lower(0)
        protocol, self._protocol = self._protocol, _NOBODY
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause the protocol, because the plain transport is full."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Resume the protocol."""
        self._protocol.resume_writing()

    def write(self, data: bytes) -> None:
        """Encrypt and write."""
        if data and not self._has_ended and not self.is_closing():
            if len(data) <= _RECORD_BYTES:
                self._tls.write(data)
                encrypted = self._outgoing.read()
            else:
                encrypted = b"".join(self._records(memoryview(data)))
            self._plain.write(encrypted)

    def _records(self, data: memoryview) -> Iterator[bytes]:
        """Encrypt record by record: `_outgoing` never frees the memory of the most that it held."""
        for begin in range(0, len(data), _RECORD_BYTES):
            self._tls.write(data[begin : begin + _RECORD_BYTES])
            yield self._outgoing.read()

    def write_eof(self) -> None:
        """Write nothing more; reading continues."""
        self._end()
        self._plain.write_eof()

    def close(self) -> None:
        """Close when all bytes are written, without waiting for the client's close_notify."""
        if not self.is_closing():
            self._end()
            self._plain.close()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        with suppress(ssl.SSLError):  # the client has not sent its close_notify
            self._tls.unwrap()
        self._plain.write(self._outgoing.read())

    def get_protocol(self) -> asyncio.Protocol:
        """The protocol above."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        """Hand decrypted bytes to another protocol."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts of the connection; `sslcontext` marks it as encrypted."""
        if name == "sslcontext":
            return self._tls.context
        return self._plain.get_extra_info(name, default)
