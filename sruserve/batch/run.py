"""Answer all lines of an input: read, ask and write side by side, in bounded memory."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from typing import Any, TypeVar

from sruserve.api.local_model import LocalModel
from sruserve.batch.answers import Answer
from sruserve.batch.asking import Asking
from sruserve.batch.entries import Entry, EntryReader, TextEntries, size_of
from sruserve.batch.errors import ChangedError
from sruserve.batch.journal import Journal, Progress
from sruserve.batch.output import Output, Sink
from sruserve.batch.records import Record, Texts
from sruserve.batch.source import Source

T = TypeVar("T")

# The engine takes as many groups into a step as fit. It schedules the texts of a group that is more
# than a step, which takes as long as computing short ones. So a group of short lines is at first a
# part of a step, and then most of one, as `_fit_blocks` finds out. Of those in flight one is
# computed, and the others are read, wait or are written.
_STEP_SHARE = 0.9  # of a step: the next lines may have more tokens for each character
_MAX_CONTENT = 1 << 20  # bytes of the answer to a group of more lines than at first
_GROUPS = 8
_LINES = 128  # in flight, even if they are more groups: completions are groups of one line
_MAX_SIZE = 16 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that are one request. size: see `Entry`. bytes, progress: up to their end."""

    entries: Sequence[Entry]
    size: int
    bytes: int
    progress: Progress


Answered = tuple[Group, list[Answer]]


class Run:
    """One run over an input.

    records: those of `source` that are still to be answered. made_of: see `Progress`.
    journal: None for an output that cannot be continued.
    advance: called with the number of the input's bytes that are done.
    max_size: of the lines in flight; see `Entry`.
    """

    def __init__(
        self,
        model: LocalModel,
        source: Source,
        records: Iterator[Record | Texts],
        reader: EntryReader,
        sink: Sink,
        made_of: dict[str, str],
        journal: Journal | None = None,
        advance: Callable[[int], None] = lambda _: None,
        max_size: int = _MAX_SIZE,
    ) -> None:
        self._max_size = max_size
        self._model, self._source, self._records = model, source, records
        self._asking = Asking(model)
        self._reader, self._sink, self._made_of = reader, sink, made_of
        self._journal, self._advance = journal, advance
        self._groups = self._make_groups()
        self._do = _in_thread if source.waits or sink.waits else _at_once
        self._flying: deque[tuple[Group, asyncio.Task[list[Answer]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Answer all lines, on the model's loop. Raises `ServeError` or `BatchError`.

        Cancelled, it has written some lines completely, and the others not at all.
        """
        self._task = asyncio.current_task()
        try:
            with self._model.alone():
                await self._answer_all()
        finally:
            for _, task in self._flying:
                task.cancel()
            await asyncio.gather(*(task for _, task in self._flying), return_exceptions=True)
        self._record(self._progress(), now=True)

    async def ended(self) -> None:
        """Wait until a run that was cancelled uses its files no more."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _answer_all(self) -> None:
        answered: list[Answered] = []
        while True:
            for group in await self._do(self._write_and_read, answered):
                task = asyncio.ensure_future(self._asking.answer(group.entries))
                self._flying.append((group, task))
            if not self._flying:
                return
            answered = await self._next_answered()

    async def _next_answered(self) -> list[Answered]:
        """Wait for the first group in flight; return it, and all next ones that are answered."""
        await self._flying[0][1]
        answered = []
        while self._flying:
            group, task = self._flying[0]
            if not task.done() or task.exception() is not None:  # which is raised at its turn
                break
            answered.append((group, task.result()))
            self._flying.popleft()
        return answered

    def _write_and_read(self, answered: list[Answered]) -> list[Group]:
        """Write answers, and read as many groups as may be in flight beside the present ones."""
        for group, answers in answered:
            self._write(group, answers)
        flying = [group for group, _ in self._flying]
        read = list[Group]()
        while self._has_room([*flying, *read]):
            following = next(self._groups, None)
            if following is None:
                break
            read.append(following)
        return read

    def _make_groups(self) -> Iterator[Group]:
        """Yield the input in groups of lines that have one key and follow each other."""
        entries, size = list[Entry](), 0
        for record in self._records:
            if isinstance(record, Texts):
                assert not entries, "lines of text are read by blocks, or each is a group"
                yield from self._split(self._reader.read_texts(record))
                continue
            entry = self._reader.read(record)
            entries.append(entry)
            size += entry.size
            if self._is_group(len(entries), size) or entry.key is None:
                yield from self._split(entries)
                entries, size = [], 0
        if entries:
            yield from self._split(entries)

    def _is_group(self, lines: int, size: int) -> bool:
        """Whether lines are as much as is read together."""
        return lines >= self._source.block_lines or size >= self._source.block_bytes

    def _fit_blocks(self, group: Group, answer: Answer) -> None:
        """Read as much together as is most of a step, by the answer to a whole group."""
        factor = _STEP_SHARE * self._model.step_rows / answer.steps
        factor = min(factor, _MAX_CONTENT / len(answer.content))
        self._source.resize_blocks(int(factor * len(group.entries)), int(factor * group.size))

    def _split(self, entries: Sequence[Entry]) -> Iterator[Group]:
        """Yield lines in groups of one key; the input has been read up to the last one's end."""
        starts = [0]
        if not (isinstance(entries, TextEntries) or _have_one_key(entries)):
            starts += [
                i for i in range(1, len(entries))
                if entries[i].key is None or entries[i].key != entries[i - 1].key
            ]  # fmt: skip
        for first, end in zip(starts, [*starts[1:], len(entries)], strict=True):
            last = end == len(entries)
            done = self._progress() if last else Progress(made_of=self._made_of)
            own = entries[first:end]
            yield Group(own, size_of(own), self._source.bytes, done)

    def _progress(self) -> Progress:
        source = self._source
        return Progress(made_of=self._made_of, line=source.line, digest=source.digest)

    def _write(self, group: Group, answers: list[Answer]) -> None:
        self._sink.write(answers)
        if len(answers) == 1 and answers[0].steps:
            self._fit_blocks(group, answers[0])
        self._advance(group.bytes)
        if group.progress.digest:
            self._record(group.progress)

    def _has_room(self, groups: Sequence[Group]) -> bool:
        """Whether more than these groups may be in flight."""
        lines = sum(len(group.entries) for group in groups)
        size = sum(group.size for group in groups)
        return (len(groups) < _GROUPS or lines < _LINES) and size < self._max_size

    def _record(self, progress: Progress, now: bool = False) -> None:
        if self._journal is not None:
            self._journal.write(progress, now)


def _have_one_key(entries: Sequence[Entry]) -> bool:
    """Whether one request can ask all of these."""
    key = entries[0].key
    return key is not None and {each.key for each in entries} == {key}


async def _at_once(work: Callable[..., T], *arguments: Any) -> T:
    """Run work that waits for nobody: a thread would cost as much as some dozens of lines."""
    return work(*arguments)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run work on a thread; a cancellation waits for it, because nothing can interrupt it."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


def skip(
    before: Progress, output: Output, source: Source, records: Iterator[Record | Texts]
) -> Iterator[Record | Texts]:
    """Read the part of an input that is answered, and check that it is what it was.

    before: the last entry of the journal. Returns the other records. Raises `ChangedError`.
    """
    source.mark = before.line
    rest = dropwhile(lambda record: record.last <= output.line, records)
    following = next(rest, None)
    if isinstance(following, Texts):
        following = following.after(output.line)
    changed = before.line and source.marked != before.digest
    if changed or source.line < output.line:
        raise ChangedError(
            f"the input is not the one that {output.path} was begun with: name another output, or "
            "add --restart to replace it"
        )
    return rest if following is None else chain((following,), rest)
