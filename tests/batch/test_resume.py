"""A run that was killed goes on where it was, and only with the same input and model."""

import asyncio
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.api.local_model import LocalModel
from sruserve.batch import output as outputs
from sruserve.batch.answers import Answer
from sruserve.batch.entries import EntryReader
from sruserve.batch.errors import ChangedError
from sruserve.batch.journal import Journal, Progress
from sruserve.batch.opening import open_output
from sruserve.batch.output import Output
from sruserve.batch.records import Format, records
from sruserve.batch.run import Run
from sruserve.batch.source import Source
from tests import preloaded
from tests.batch.runs import answers, errors, jsonl, run
from tests.server.hand_clock import HandClock

Local = Callable[[str], LocalModel]
# Every seventh line is wrong, and some are blank.
LINES = (
    b"\n".join(
        b"" if i % 11 == 5 else jsonl([1000] if i % 7 == 3 else [i % 9, 1]).strip()
        for i in range(40)
    )
    + b"\n"
)


class Killed(BaseException):
    """The process ends here."""


@settings(max_examples=25)  # each is several runs
@given(
    content=st.text("ab \r\n", max_size=60).map(str.encode) | st.binary(max_size=30),
    kills=st.lists(st.integers(0, 500), min_size=1, max_size=3),
)
def test_lines_of_text_are_answered_once_however_they_are_read_together(
    local: Local, tmp_path_factory: pytest.TempPathFactory, content: bytes, kills: list[int]
) -> None:
    folder, model = tmp_path_factory.mktemp("lines"), local("question")
    run(model, content, folder / "alone", "lines", first_lines=1)
    for left in kills:
        with killed_after(left):
            run(model, content, folder / "out", "lines", first_lines=4)
    run(model, content, folder / "out", "lines", first_lines=4)
    for suffix in ("", ".errors"):
        alone, together = (folder / f"{name}{suffix}" for name in ("alone", "out"))
        assert alone.exists() == together.exists()
        assert not alone.exists() or alone.read_bytes() == together.read_bytes()


@contextmanager
def killed_after(left: int) -> Iterator[None]:
    """A block in which a run is killed once so many bytes are written."""
    remaining = left

    def write(file: io.FileIO, content: bytes) -> None:
        nonlocal remaining
        file.write(content[: max(0, remaining)])
        remaining -= len(content)
        if remaining < 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(outputs, "_write_all", write)
        yield


@pytest.fixture(scope="module")
def uninterrupted(local: Local, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run over all lines that nobody stops."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    run(local("question"), LINES, output)
    return output


@given(
    group=st.sampled_from([128, 3]),  # lines: the file is one group, or several are in hand
    kills=st.lists(st.integers(0, 3000), min_size=1, max_size=3),
)
def test_a_run_that_is_killed_anywhere_ends_as_one_that_is_not(
    local: Local,
    uninterrupted: Path,
    tmp_path_factory: pytest.TempPathFactory,
    group: int,
    kills: list[int],
) -> None:
    folder, model = tmp_path_factory.mktemp("runs"), local("question")
    for left in kills:
        with killed_after(left):
            run(model, LINES, folder / "out", first_lines=group)
    run(model, LINES, folder / "out")
    for suffix in ("", ".errors"):
        expected = uninterrupted.with_name(uninterrupted.name + suffix).read_bytes()
        assert (folder / f"out{suffix}").read_bytes() == expected


# A run, at each of whose steps there is time to stop it once its output has begun.
SLOW = """
import os, sys, time
from sruserve.cli import main
from sruserve.server.engine.model_runner import ModelRunner

os.setsid()
output, step = sys.argv.pop(1), ModelRunner.step

def slow_step(*arguments):
    if os.path.exists(output) and os.path.getsize(output):
        time.sleep(1)
    return step(*arguments)

ModelRunner.step = slow_step
main()
"""


@pytest.fixture(scope="module")
def whole(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], bytes]:
    """The command of a run without its output, and what it writes if nothing stops it."""
    folder = tmp_path_factory.mktemp("whole")
    prompts, output = folder / "prompts.jsonl", folder / "out"
    prompts.write_bytes(jsonl(*({"prompt": f"to be {i}", "seed": i} for i in range(300))))
    command = ["run", str(folders / "characters"), str(prompts)]
    command += ["--device", "cpu", "--max-tokens", "100"]
    done = preloaded.run("-m", "sruserve", *command, "-o", str(output))
    assert done.returncode == 0, done.stderr
    return command, output.read_bytes()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
    ids=["kill", "terminate", "ctrl-c"],
)
def test_a_process_that_is_stopped_continues(
    whole: tuple[list[str], bytes], tmp_path: Path, number: int, code: int
) -> None:
    (command, expected), output = whole, tmp_path / "out"
    arguments = ("-c", SLOW, str(output), *command, "-o", str(output))
    with (tmp_path / "errors").open("w") as errors:
        first = preloaded.Preloaded.reading(
            *arguments, environment=os.environ, errors=errors.fileno()
        )
    while not (output.exists() and output.stat().st_size):
        assert first.poll() is None
        time.sleep(0.01)
    os.killpg(first.pid, number)
    first.communicate(300)
    assert (tmp_path / "errors").read_text() == ""
    assert first.returncode == code
    assert 0 < output.read_bytes().count(b"\n") < 300
    again = preloaded.run("-m", "sruserve", *command, "-o", str(output))
    assert again.returncode == 0, again.stderr
    assert [each["line"] for each in answers(output)] == list(range(1, 301))
    assert output.read_bytes() == expected


def test_an_empty_input_may_be_repeated_and_grow(local: Local, tmp_path: Path) -> None:
    for content in (b"", b"", jsonl([1])):
        run(local("question"), content, tmp_path / "out")
    assert [each["line"] for each in answers(tmp_path / "out")] == [1]


def test_a_finished_run_has_nothing_left_to_do_but_lines_that_were_added(
    local: Local, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run(local("question"), jsonl([1], [2]) + b"\n\n", output)
    before = output.read_bytes()
    run(local("question"), jsonl([1], [2]) + b"\n\n", output)
    assert output.read_bytes() == before
    run(local("question"), jsonl([1], [2]) + b"\n\n" + jsonl([3]), output)
    assert [each["line"] for each in answers(output)] == [1, 2, 5]


@pytest.mark.parametrize(
    "content", [jsonl([2], [1]), jsonl([1]), b"", jsonl([1], [2])[:-1]], ids=repr
)
def test_another_input_is_refused(local: Local, tmp_path: Path, content: bytes) -> None:
    run(local("question"), jsonl([1], [2]), tmp_path / "out")
    before = (tmp_path / "out").read_bytes()
    with pytest.raises(ChangedError, match="the input is not the one that"):
        run(local("question"), content, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == before


def test_another_model_is_refused_by_its_digest(local: Local, tmp_path: Path) -> None:
    run(local("question"), jsonl([1]), tmp_path / "out")
    digest = local("whole").served.model.digest
    with pytest.raises(ChangedError, match=f"was begun with model .*, and now it is {digest}"):
        run(local("whole"), jsonl([1]), tmp_path / "out")


def test_a_file_of_somebody_else_is_neither_changed_nor_continued(
    local: Local, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.write_bytes(b"my letter, without an end of its last line")
    with pytest.raises(ChangedError, match="is not beside it"):
        run(local("question"), jsonl([1]), output)
    assert output.read_bytes() == b"my letter, without an end of its last line"
    lines = tmp_path / "list.errors"
    lines.write_bytes(b"what went wrong today")
    with pytest.raises(ChangedError, match=r"list\.progress is not beside it"):
        run(local("question"), jsonl([1]), tmp_path / "list")
    assert lines.read_bytes() == b"what went wrong today"
    begun, *_ = open_output(tmp_path / "new", {"model": local("question").served.model.digest})
    begun.close()
    (tmp_path / "new").write_bytes(b"another letter\n")
    with pytest.raises(ChangedError, match="not of a run"):
        run(local("question"), jsonl([1]), tmp_path / "new")


def test_two_runs_cannot_write_one_output(tmp_path: Path) -> None:
    first = Output(tmp_path / "out")
    with pytest.raises(ChangedError, match="another run writes"):
        Output(tmp_path / "out")
    first.close()
    Output(tmp_path / "out").close()


def test_a_journal_is_written_once_a_second_unless_a_run_ends(tmp_path: Path) -> None:
    clock = HandClock()
    journal = Journal(tmp_path / "out", clock)

    def written(line: int, seconds: float, now: bool = False) -> int:
        clock.now += seconds
        journal.write(Progress(made_of={}, line=line), now)
        progress = journal.read()
        assert progress is not None
        return progress.line

    assert [written(1, 0), written(2, 0.75), written(3, 0.25), written(4, 0.75)] == [1, 1, 3, 3]
    assert [written(5, 0, now=True), written(6, 0.75), written(7, 0.25)] == [5, 5, 7]


def test_a_journal_that_cannot_be_read_is_refused(local: Local, tmp_path: Path) -> None:
    run(local("question"), jsonl([1]), tmp_path / "out")
    (tmp_path / "out.progress").write_text("{")
    with pytest.raises(ChangedError, match="cannot be read"):
        run(local("question"), jsonl([1]), tmp_path / "out")


def test_errors_of_an_earlier_run_are_counted(local: Local, tmp_path: Path) -> None:
    run(local("question"), LINES, tmp_path / "out")
    written = Output(tmp_path / "out")
    assert written.wrong == len(errors(tmp_path / "out")) > 3
    written.close()


class HeldSink:
    """Takes answers, and holds the thread that writes them."""

    wrong, waits = 0, True

    def __init__(self) -> None:
        self.begun, self.may_end, self.written = threading.Event(), threading.Event(), 0

    def write(self, answers: Sequence[Answer]) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        self.written += sum(each.content.count(b"\n") for each in answers)


async def turns_after_cancellation(run: Run) -> None:
    """Some turns of the loop in which a run could end that waits for nothing."""
    while run._task is None or not run._task.cancelling():
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)


def test_a_run_that_is_cancelled_ends_when_no_thread_uses_its_files(local: Local) -> None:
    model, sink = local("question"), HeldSink()
    source = Source(io.BytesIO(jsonl(*([i % 9] for i in range(2000)))))
    lines = records(source, Format.JSONL, None)
    run = Run(model, source, lines, EntryReader("classify", "question", {}), sink, {})
    future = asyncio.run_coroutine_threadsafe(run(), model.loop.loop)
    assert sink.begun.wait(60)
    future.cancel()
    ended = asyncio.run_coroutine_threadsafe(run.ended(), model.loop.loop)
    model.loop.run(turns_after_cancellation(run))
    assert not ended.done()
    answered = source.line - sum(len(group.entries) for group, _ in run._flying)
    sink.may_end.set()
    ended.result(60)
    assert sink.written == answered  # all lines that were in hand, and no other followed


@pytest.mark.parametrize("suffix", ["", ".errors", ".progress.new"])
def test_nothing_is_written_through_a_link_that_others_put_beside_an_output(
    tmp_path: Path, suffix: str
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"")
    out = tmp_path / "out"
    planted = Path(f"{out}{suffix}")

    def plant() -> None:
        with suppress(FileExistsError):
            planted.symlink_to(other)

    if not suffix:
        plant()
    with suppress(OSError):
        output, journal, before = open_output(out, {})
        plant()
        journal.write(before, now=True)
        with suppress(OSError):
            output.write([Answer(1, b'{"line": 1}\n', wrong=False)])
            output.write([Answer(2, b'{"line": 2}\n', wrong=True)])
        output.close()
        again, *_ = open_output(out, {})
        again.close()
    assert other.read_bytes() == b""


def test_a_pipe_that_others_put_in_the_place_of_an_output_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    with pytest.raises(OSError, match="not a regular file"):
        open_output(tmp_path / "out", {})
