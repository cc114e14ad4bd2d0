"""The process of one grammar: it compiles and follows it within limits that the kernel enforces.

A helper process imports the modules once, and forks a process for each grammar. Only these run the
library on the input of clients: a grammar that takes too much memory or CPU time, or crashes the
library, ends its own process and no other.
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

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.engine.constrained.wire import (
    ADVANCE,
    BEGIN,
    COMMAND,
    COMMIT,
    COPY,
    FORK,
    MESSAGE,
    Position,
    error_reply,
    frame,
    ok_reply,
    pack_position,
    receive,
)
from sruserve.server.errors import EngineFailure, ServeError

_PAGE_BYTES = resource.getpagesize()
_NICE = 5  # where CPUs are scarce, the server runs before its clients' grammars


def run_helper(control: socket.socket) -> None:
    """Fork a process for each socket received, and kill the named pids, until `control` closes."""
    children: set[int] = set()  # not reaped yet, so that no other process can have their pids
    ended, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a draining server needs the helper to the end
    poll = select.poll()
    for fd in (control.fileno(), ended):
        poll.register(fd, select.POLLIN)
    gc.collect()
    gc.freeze()  # a child's garbage collections then leave pages shared
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if ended in ready:
            os.read(ended, 1 << 16)
            _reap(children)
        if control.fileno() in ready and not _run_command(control, children):
            return


def _reap(children: set[int]) -> None:
    """Reap the children that have ended."""
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            children.discard(pid)


def _run_command(control: socket.socket, children: set[int]) -> bool:
    """Run the server's next command; False: the server has closed the socket."""
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
    except OSError as error:  # too many processes: the server sees its channel close
        print(f"cannot fork a process for a grammar: {error}", file=sys.stderr)
        child = -1
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        _run_child(socket.socket(fileno=channel))
    if child > 0:
        children.add(child)
    os.close(channel)
    return True


def _run_child(channel: socket.socket) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard_stream in range(3):
            os.dup2(null, standard_stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(_NICE)
        channel.sendall(frame(str(os.getpid()).encode()))
        with channel.makefile("rb") as messages:
            _GrammarWorker(channel, messages, json.loads(receive(messages))).serve()
    except (EOFError, OSError):
        pass  # the server no longer uses the grammar
    finally:
        os._exit(0)


class _GrammarWorker:
    """A grammar, and the states of the texts that follow it.

    request: the source to compile, and its limits; see `GrammarProcess.compile`.
    """

    def __init__(self, channel: socket.socket, messages: BinaryIO, request: dict[str, Any]) -> None:
        self._channel, self._messages = channel, messages
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._bytes_at_start = self._memory()[1]
        self._max_seconds, self._earned_seconds = request["step_seconds"], request["earned_seconds"]
        self._seconds: float = self._max_seconds  # of CPU time for the next token
        self._states: dict[int, ConstraintState] = {}
        _limit_memory(self._memory()[0] + request["compile_bytes"])
        constraint: Constraint | None = None

        def compile_constraint() -> bytes:
            nonlocal constraint
            vocabulary = ByteVocabulary.of_values(bytes.fromhex(request["values"]))
            make = Constraint.regex if request["kind"] == "regex" else Constraint.json_schema
            constraint = make(request["source"], vocabulary)
            return constraint.identity + self._used_bytes().to_bytes(8, "little")

        self._answer(compile_constraint, request["compile_seconds"])
        if constraint is None:
            raise EOFError
        self._constraint: Constraint = constraint
        _limit_memory(self._memory()[0] + request["growth_bytes"])

    def serve(self) -> None:
        """Answer requests until the server closes the channel."""
        while True:
            message = receive(self._messages)
            operation, number, value = MESSAGE.unpack_from(message)
            if operation == BEGIN:
                consumed = message[MESSAGE.size :]
                self._answer(lambda: self._begin(number, consumed), value / 1000)  # noqa: B023
            elif operation == COPY:
                source = int.from_bytes(message[MESSAGE.size :], "little")
                self._answer(lambda: self._copy(number, source), value / 1000)  # noqa: B023
            elif operation == ADVANCE:
                begin = time.process_time()
                self._answer(lambda: self._advance(number, value), self._seconds)  # noqa: B023
                left = self._seconds - (time.process_time() - begin)
                if left <= 0:  # the kernel's timer is coarse
                    raise EOFError
                self._seconds = min(left + self._earned_seconds, self._max_seconds)
            elif operation == COMMIT:
                self._states[number].commit(value)
            else:
                self._states.pop(number, None)

    def _begin(self, number: int, consumed: bytes) -> bytes:
        self._states[number] = self._constraint.begin(consumed)
        return self._position(number)

    def _copy(self, number: int, source: int) -> bytes:
        self._states[number] = self._states[source].copy()
        return self._position(number)

    def _advance(self, number: int, token: int) -> bytes:
        return self._position(number, self._states[number].advance(token))

    def _position(self, number: int, accepted: bool = True) -> bytes:
        state = self._states[number]
        return pack_position(Position(accepted, self._used_bytes(), state.options, state.problem))

    def _answer(self, work: Callable[[], bytes], seconds: float) -> None:
        """Reply with the result; the kernel ends the process if it takes more CPU time."""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = ok_reply(work())
        except ServeError as error:
            reply = error_reply(error)
        except (MemoryError, EOFError, OSError):
            raise EOFError from None
        except BaseException as error:  # a panic of the library is no `Exception`
            reply = error_reply(EngineFailure(f"{type(error).__name__}: {error}"[:500]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._channel.sendall(frame(reply))

    def _used_bytes(self) -> int:
        """The memory that the process has added since its start."""
        return max(0, self._memory()[1] - self._bytes_at_start)

    def _memory(self) -> tuple[int, int]:
        """Bytes of address space, and of resident memory that belongs to no file."""
        size, resident, shared, *_ = os.pread(self._statm, 200, 0).split()
        return int(size) * _PAGE_BYTES, (int(resident) - int(shared)) * _PAGE_BYTES


def _limit_memory(max_bytes: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # only root may raise it
    if hard != resource.RLIM_INFINITY:
        max_bytes = min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, hard))
