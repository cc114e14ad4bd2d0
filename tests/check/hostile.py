"""Servers that break HTTP, or never end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket, threading.Event], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The address of a server that answers each request so; `over` is set at the end."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            answer(connection, over)

    def accept() -> None:
        while not over.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join()


def says(content: bytes) -> Answer:
    return lambda connection, _: connection.sendall(content)


def repeats(first: bytes, more: bytes, pause_seconds: float = 0.0) -> Answer:
    """Sends something, and then more without an end."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.wait(pause_seconds):
            connection.sendall(more)

    return answer


def is_silent(connection: socket.socket, over: threading.Event) -> None:
    over.wait()
