"""Lines of a log: their formats, and what happens where nobody reads them."""

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from sruserve.server.logs.config import set_up_logging
from sruserve.server.logs.handler import writes_json
from sruserve.server.logs.line_writer import LineWriter
from sruserve.server.logs.lines import JsonLines, TextLines

SECRET = "sesame-is-secret"
TRICKY = 'a\r\n{"level":"error"}\u2028\x85\x1b[31m\udcff\u202e"'


def record(message: str, error: BaseException | None = None, name: str = "a") -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord(name, logging.INFO, "", 0, "%s", (message,), info)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_no_message_begins_a_line_or_controls_a_terminal(lines: logging.Formatter) -> None:
    line = lines.format(record(TRICKY))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_a_line_of_json_has_its_message_and_an_exception_in_one_field() -> None:
    fields = json.loads(JsonLines().format(record(TRICKY, raised(OSError(TRICKY)))))
    assert fields["message"] == TRICKY
    assert fields["time"].endswith("Z")
    assert (fields["level"], fields["logger"], fields["worker"]) == ("info", "a", os.getpid())
    stack = fields["exception"].splitlines()
    assert stack[0] == "Traceback (most recent call last):"
    assert stack[-1].startswith("OSError: a\\r\\n")


@pytest.mark.parametrize("error", [ValueError, KeyError, UnicodeError, Exception, LookupError])
def test_what_an_exception_may_quote_of_a_request_is_left_out(error: type[Exception]) -> None:
    caught = raised(error(SECRET))
    caught.__cause__ = raised(TypeError(SECRET))
    for lines in (JsonLines(), TextLines()):
        line = lines.format(record("it failed", caught))
        assert "in raised" in line
        assert error.__name__ in line
        assert "TypeError" in line
        assert SECRET not in line


@pytest.mark.parametrize("error", [OSError, RuntimeError, MemoryError])
def test_an_error_of_the_machine_is_reported(error: type[Exception]) -> None:
    assert f"{error.__name__}: the disk is full" in TextLines().format(
        record("it failed", raised(error("the disk is full")))
    )


def test_a_message_of_asyncio_shows_no_object() -> None:
    message = f"Task exception was never retrieved\nfuture: <Task exception={SECRET}>"
    line = JsonLines().format(record(message, name="asyncio"))
    assert json.loads(line)["message"] == "Task exception was never retrieved"


def test_a_reader_who_stops_delays_nothing_and_learns_how_many_lines_are_missing() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, 100, lambda count: f"dropped {count}")
    line = "x" * 1023
    for _ in range(1000):  # a megabyte; a pipe takes 64 KiB
        writer.write(line)
    received = b""
    while b"dropped" not in received and received.count(b"\n") < 1000:
        received += os.read(reading, 1 << 16)
    *lines, notice, end = received.decode().split("\n")
    assert set(lines) == {line}
    assert notice == f"dropped {1000 - len(lines)}"
    assert end == ""
    writer.write("more")
    assert os.read(reading, 100) == b"more\n"


def test_lines_of_several_processes_do_not_break_each_other_on_a_pipe() -> None:
    """Each has two streams, which are the same pipe. Its reader is slow, so that it is full."""
    program = """
import json, sys
from sruserve.server.logs.line_writer import LineWriter
writers = [LineWriter(descriptor, 1 << 20, str) for descriptor in (1, 2)]
for number in range(600):
    for writer in writers:
        writer.write(json.dumps({"number": number, "padding": "x" * (number * 37 % 700)}))
        if number % 20 == 0:
            writer.write(json.dumps({"number": -1, "padding": "x" * 20_000}))
for writer in writers:
    writer.flush(600)
"""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, stdout=writing, stderr=writing) for _ in range(3)]
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe:
        received = b"".join(iter(lambda: pipe.read(1000), b""))
    assert [process.wait(60) for process in processes] == [0] * 3
    lines = [json.loads(line) for line in received.splitlines()]
    assert len(lines) == 3 * 2 * (600 + 30)


def test_a_reader_who_has_left_delays_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing, 10, str)
    for _ in range(100):
        writer.write("x")
    writer.flush(60)


def test_a_full_disk_is_reported_once_and_its_end_too(tmp_path: Path) -> None:
    reasons: list[str | None] = []

    def tell(error: OSError | None) -> None:
        reasons.append(error.strerror if error else None)

    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(descriptor, 100, lambda count: f"dropped {count}", tell)
    for _ in range(3):
        writer.write("lost")
        writer.flush(60)
    assert reasons == ["No space left on device"]
    with open(tmp_path / "log", "wb") as file:
        os.dup2(file.fileno(), descriptor)
    for _ in range(3):
        writer.write("kept")
        writer.flush(60)
    assert reasons == ["No space left on device", None]
    assert (tmp_path / "log").read_text().endswith("\n" + 3 * "kept\n")


def test_standard_error_says_that_the_lines_of_requests_are_lost() -> None:
    program = """
import logging
from sruserve.server.logs.config import set_up_logging
from sruserve.server.observation.request_log import RequestLog
set_up_logging("info", "text")
requests = RequestLog("text", "info")
for _ in range(3):
    requests._writer.write("a request")
    requests.close(60)
logging.shutdown()
"""
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=True
        )
    assert process.stderr.count(b"requests are lost") == 1
    assert b"No space left on device" in process.stderr


def test_lines_are_written_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", fail)
    reading, writing = os.pipe()
    writer = LineWriter(writing, 10, str)
    for word in ("one", "two"):
        writer.write(word)
    assert os.read(reading, 100) == b"one\ntwo\n"


def test_lines_are_json_unless_a_person_reads_them() -> None:
    terminal, inside = os.openpty()
    reading, writing = os.pipe()
    try:
        assert not writes_json("auto", inside)
        assert writes_json("auto", writing)
        for descriptor in (inside, writing):
            assert writes_json("json", descriptor)
            assert not writes_json("text", descriptor)
    finally:
        for descriptor in (terminal, inside, reading, writing):
            os.close(descriptor)


@pytest.fixture
def written() -> list[str]:
    """The lines of a program that logs in every way there is."""
    program = """
import asyncio, logging, sys, threading, warnings
from sruserve.server.logs.config import set_up_logging
set_up_logging("info", "json")
logging.getLogger("sruserve.server").info("ours")
logging.getLogger("uvicorn.error").warning("uvicorn's\\nown")
logging.getLogger("some.library").error("a library's %s", "line")
logging.getLogger("some.library").info("not severe")
warnings.warn("a warning", stacklevel=1)
from opentelemetry.util.re import parse_env_headers
parse_env_headers("sesame-is-secret")
def fail(): raise ValueError("sesame-is-secret")
thread = threading.Thread(target=fail); thread.start(); thread.join()
class Leaving:
    def __del__(self): fail()
Leaving()
async def forget():
    task = asyncio.create_task(asyncio.sleep(0, fail()))
async def lose():
    task = asyncio.ensure_future(forget())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(lose())
fail()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == b""
    return done.stderr.decode().splitlines()


def test_every_line_of_a_process_is_json(written: list[str]) -> None:
    lines = [json.loads(line) for line in written]
    messages = [line["message"] for line in lines]
    assert messages[:3] == ["ours", "uvicorn's\nown", "a library's line"]
    assert "UserWarning: a warning" in messages[3]
    assert messages[4].startswith("Header format invalid!")
    assert messages[5:] == [
        *("an exception was not handled",) * 2,
        "Task exception was never retrieved",
        "an exception was not handled",
    ]
    assert all(line["exception"].endswith("ValueError") for line in lines[5:])
    assert SECRET not in "".join(written)


def test_a_failure_to_start_is_a_line_of_json_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sruserve", "serve", str(tmp_path / "nothing")]
    environment = os.environ | {"SRUSERVE_LOG_FORMAT": "auto"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 2
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "critical"
    assert "nothing" in line["message"]


def test_on_a_terminal_a_failure_to_start_is_a_short_line(tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    command = [sys.executable, "-m", "sruserve", "serve", str(tmp_path / "nothing")]
    environment = os.environ | {"SRUSERVE_LOG_FORMAT": "auto"}
    done = subprocess.run(command, stderr=inside, env=environment, timeout=120)
    assert done.returncode == 2
    assert os.read(terminal, 4096).startswith(b"error: ")
    os.close(terminal)
    os.close(inside)


def test_a_process_can_be_set_up_again() -> None:
    """Restores what the tests' own process has."""
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    ours, root = logging.getLogger("sruserve"), logging.getLogger()
    before = ours.handlers[:], ours.propagate, ours.level, root.handlers[:], root.level
    try:
        for _ in range(2):
            set_up_logging("info", "text")
            assert len(ours.handlers) == 1
    finally:
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
        ours.handlers[:], ours.propagate, ours.level, root.handlers[:], root.level = before
        logging.getLogger("uvicorn.error").handlers.clear()
        logging.getLogger("uvicorn.error").propagate = True
