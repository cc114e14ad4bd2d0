"""Errors that nobody is told any more: what they hold is let go at once.

An error holds the frames that it went through, and these the request. Where a frame also holds the
error, as that of a task that awaits another does, all of it would stay in memory until the garbage
collector runs, which is rare.
"""

import asyncio
from asyncio import Future, Task
from typing import Any, TypeVar

T = TypeVar("T")


def forget_frames(error: BaseException) -> None:
    """Let go of the frames of an error that was told, and of the errors before it."""
    rest: BaseException | None = error
    while rest is not None:
        rest.__traceback__, cause = None, rest.__cause__ or rest.__context__
        rest.__cause__ = rest.__context__ = None
        rest = cause


def forget_error(done: Future[Any]) -> None:
    """Let go of the frames of an error in which work has ended that nobody waits for."""
    try:
        done.result()  # which takes the traceback that the future keeps beside the error
    except BaseException as error:
        forget_frames(error)


async def shielded(task: Task[T]) -> T:
    """The result of a task that goes on without its caller, and is told to nobody then."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(forget_error)
        raise
    finally:
        del task  # its error would hold this frame, and this frame the error
