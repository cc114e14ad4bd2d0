"""Proxies before a real Redis, which lose, hold back or change what goes by."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from select import select


class BeforeRedis:
    """Stands before Redis, and hands on all but what has `withheld` in it.

    trips: how often something was sent that waited for an answer.
    """

    def __init__(self, port: int, withheld: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self._redis_port = int(self._listener.getsockname()[1]), port
        self._withheld, self.trips = withheld, 0
        self._threads = ThreadPoolExecutor(16)
        self._threads.submit(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads.shutdown()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._threads.submit(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._redis_port)) as upstream:
            answered = True
            while True:
                for source in select([client, upstream], [], [])[0]:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    self.trips += answered and source is client
                    answered = source is upstream
                    if not (self._withheld and self._withheld in data):
                        (upstream if source is client else client).sendall(data)


class LosesAnswers(BeforeRedis):
    """Loses the answer to the next command that has `lose` in it."""

    lose: bytes | None = None

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._redis_port)) as upstream:
            losing = False
            while True:
                for source in select([client, upstream], [], [])[0]:
                    data = source.recv(1 << 20)
                    if not data or (losing and source is upstream):
                        return
                    if source is client and self.lose and self.lose in data:
                        losing, self.lose = True, None
                    (upstream if source is client else client).sendall(data)


class AnswersRubbish(BeforeRedis):
    """Answers `rubbish` itself to each script, and to INFO."""

    rubbish = b""

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._redis_port)) as upstream:
            while True:
                for source in select([client, upstream], [], [])[0]:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    if source is upstream:
                        client.sendall(data)
                    # not to CLIENT SETINFO, which begins a connection
                    elif self.rubbish and (b"EVALSHA" in data or b"$4\r\nINFO\r\n" in data):
                        client.sendall(self.rubbish)
                    else:
                        upstream.sendall(data)
