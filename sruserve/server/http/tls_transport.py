"""Encrypt one connection: a transport with the limits of the plain one that it writes to."""

import asyncio
import ssl
from contextlib import suppress
from typing import Any

_RECORD_BYTES = 16 << 10  # the longest record
_NOBODY = asyncio.Protocol()


class TlsTransport(asyncio.Protocol):
    """The protocol of a plain transport, and the transport of the protocol above it.

    asyncio's own TLS has buffers of its own, beyond the limits of `WriteTimeout` and `Intake`, and
    cannot close one direction. Here, encrypted bytes wait in the plain transport alone, which
    pauses the protocol as it would without TLS, and received bytes are decrypted at once.

    tls: has finished its handshake; it reads from `incoming`, and writes to `outgoing`.
    """

    def __init__(
        self,
        plain: asyncio.Transport,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        protocol: asyncio.Protocol,
    ) -> None:
        self._plain, self._tls, self._protocol = plain, tls, protocol
        self._incoming, self._outgoing = incoming, outgoing
        self._has_ended = False  # close_notify is sent
        self.abort, self.is_closing = plain.abort, plain.is_closing
        self.pause_reading, self.resume_reading = plain.pause_reading, plain.resume_reading
        self.get_write_buffer_size = plain.get_write_buffer_size

    def data_received(self, data: bytes) -> None:
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
        if self._outgoing.pending:  # an answer of TLS itself
            self._plain.write(self._outgoing.read())
        if parts:
            self._protocol.data_received(b"".join(parts))
        if has_ended and not self.is_closing():
            self.eof_received()

    def eof_received(self) -> None:
        """Close, after the protocol has limited the time for unsent bytes."""
        self._protocol.eof_received()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss, and free the connection."""
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
        if not self._has_ended and not self.is_closing():
            self._tls.write(data)
            self._plain.write(self._outgoing.read())

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
