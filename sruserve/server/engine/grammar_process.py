"""The process of one grammar: it compiles and follows it within bounds that the kernel holds.

A helper process imports what is needed, once, and forks a process for each grammar. Nobody but
these ever runs the library on what a client sent: what takes too much memory, too much time, or
crashes, ends one of them, and with it one grammar.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.constraint import Constraint
from sruserve.server.engine.spelling import Spelling
from sruserve.server.engine.wire import (
    BEGIN,
    COMMAND,
    COPY,
    FORK,
    MESSAGE,
    SETTLE,
    TAKE,
    Position,
    bad,
    frame,
    good,
    pack_position,
    receive,
)
from sruserve.server.errors import EngineFailure, ServeError

_PAGE = resource.getpagesize()
_NICE = 5  # where processors are short, nobody waits for what a client's grammar takes


def help_server(control: socket.socket) -> None:
    """Fork a process for every socket that comes, and kill those that are named, until the end."""
    children: set[int] = set()  # that are not waited for: their numbers are nobody else's
    ended, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the server, whose drain needs it
    poll = select.poll()
    for heard in (control.fileno(), ended):
        poll.register(heard, select.POLLIN)
    gc.collect()
    gc.freeze()  # so that a child's collections leave the pages shared
    while True:
        ready = {number for number, _ in poll.poll()}
        if ended in ready:
            os.read(ended, 1 << 16)
            _reap(children)
        if control.fileno() in ready and not _obey(control, children):
            return


def _reap(children: set[int]) -> None:
    """Wait for those that have ended."""
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            children.discard(pid)


def _obey(control: socket.socket, children: set[int]) -> bool:
    """Do what the server says next; whether there will be more."""
    command, fds, _, _ = socket.recv_fds(control, COMMAND.size, 1)
    if not command:
        return False
    (pid,) = COMMAND.unpack(command)
    if pid != FORK:
        if pid in children:
            os.kill(pid, signal.SIGKILL)
        return True
    (channel,) = fds
    try:
        child = os.fork()
    except OSError as error:  # too many processes: the server sees the channel end
        print(f"no process for a grammar: {error}", file=sys.stderr)
        child = -1
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        _be_child(socket.socket(fileno=channel))
    if child > 0:
        children.add(child)
    os.close(channel)
    return True


def _be_child(channel: socket.socket) -> NoReturn:
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(_NICE)
        channel.sendall(frame(str(os.getpid()).encode()))
        with channel.makefile("rb") as messages:
            _Grammar(channel, messages, json.loads(receive(messages))).follow()
    except (EOFError, OSError):
        pass  # the server has let go of the grammar
    finally:
        os._exit(0)


class _Grammar:
    """A grammar, and the positions of the texts that follow it.

    asked: what to compile and within which bounds; see `confined.py`.
    """

    def __init__(self, channel: socket.socket, messages: BinaryIO, asked: dict[str, Any]) -> None:
        self._channel, self._messages = channel, messages
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._held_at_first = self._memory()[1]
        self._most_seconds, self._earned = asked["step_seconds"], asked["earned_seconds"]
        self._seconds: float = self._most_seconds  # of a CPU, that may be used now
        self._spellings: dict[int, Spelling] = {}
        _bound_memory(self._memory()[0] + asked["compile_bytes"])
        constraint: Constraint | None = None

        def made() -> bytes:
            nonlocal constraint
            alphabet = Alphabet.of_values(bytes.fromhex(asked["values"]))
            make = Constraint.regex if asked["kind"] == "regex" else Constraint.json_schema
            constraint = make(asked["given"], alphabet)
            return constraint.identity + self._held().to_bytes(8, "little")

        self._answer(made, asked["compile_seconds"])
        if constraint is None:
            raise EOFError
        self._constraint: Constraint = constraint
        _bound_memory(self._memory()[0] + asked["growth_bytes"])

    def follow(self) -> None:
        """Answer until the server lets go."""
        while True:
            message = receive(self._messages)
            op, number, given = MESSAGE.unpack_from(message)
            if op == BEGIN:
                spelled = message[MESSAGE.size :]
                self._answer(lambda: self._begin(number, spelled), given / 1000)  # noqa: B023
            elif op == COPY:
                like = int.from_bytes(message[MESSAGE.size :], "little")
                self._answer(lambda: self._copy(number, like), given / 1000)  # noqa: B023
            elif op == TAKE:
                begin = time.process_time()
                self._answer(lambda: self._take(number, given), self._seconds)  # noqa: B023
                left = self._seconds - (time.process_time() - begin)
                if left <= 0:  # the kernel's timer is coarse
                    raise EOFError
                self._seconds = min(left + self._earned, self._most_seconds)
            elif op == SETTLE:
                self._spellings[number].settle(given)
            else:
                self._spellings.pop(number, None)

    def _begin(self, number: int, spelled: bytes) -> bytes:
        self._spellings[number] = self._constraint.begin(spelled)
        return self._position(number)

    def _copy(self, number: int, like: int) -> bytes:
        self._spellings[number] = self._spellings[like].copy()
        return self._position(number)

    def _take(self, number: int, token: int) -> bytes:
        return self._position(number, self._spellings[number].take(token))

    def _position(self, number: int, taken: bool = True) -> bytes:
        spelling = self._spellings[number]
        return pack_position(Position(taken, self._held(), spelling.options, spelling.problem))

    def _answer(self, work: Callable[[], bytes], seconds: float) -> None:
        """Reply; the kernel ends the process if the work takes more of a CPU's time."""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = good(work())
        except ServeError as error:
            reply = bad(error)
        except (MemoryError, EOFError, OSError):
            raise EOFError from None
        except BaseException as error:  # a panic is none of `Exception`
            reply = bad(EngineFailure(f"{type(error).__name__}: {error}"[:500]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._channel.sendall(frame(reply))

    def _held(self) -> int:
        """How many bytes it has come to hold."""
        return max(0, self._memory()[1] - self._held_at_first)

    def _memory(self) -> tuple[int, int]:
        """Bytes of address space, and of memory that is no file's."""
        size, resident, shared, *_ = os.pread(self._statm, 200, 0).split()
        return int(size) * _PAGE, (int(resident) - int(shared)) * _PAGE


def _bound_memory(most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # which only root may raise
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
