"""Free the memory of errors that no caller awaits.

An error refers to the frames that it passed, and these refer to the request. If a frame also refers
to the error, as in a task that awaits another one, both stay in memory until the garbage collector
runs, which is rare.
"""

import asyncio
from asyncio import Future, Task
from typing import Any, TypeVar

T = TypeVar("T")


def forget_frames(error: BaseException) -> None:
    """Drop the frames of an error that was reported, and of its causes."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__, cause = None, linked.__cause__ or linked.__context__
        linked.__cause__ = linked.__context__ = None
        linked = cause


def forget_error(done: Future[Any]) -> None:
    """Drop the frames of the error of a finished future that no caller awaits."""
    try:
        done.result()  # also drops the traceback that the future stores beside the error
    except BaseException as error:
        forget_frames(error)


async def shielded(task: Task[T]) -> T:
    """The result of a task that continues if its caller is cancelled; its error is then dropped."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(forget_error)
        raise
    finally:
        del task  # its error would hold this frame, and this frame the error
