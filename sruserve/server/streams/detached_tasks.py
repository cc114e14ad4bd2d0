"""Tasks that run to their end even if their callers leave."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sruserve.server.unheard import forget_error

T = TypeVar("T")


class DetachedTasks:
    """Starts tasks and refers to them, because the event loop alone would not keep them.

    running: those that have not ended.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that runs to its end even if its caller leaves."""
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    def start_unawaited(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task whose error nobody awaits."""
        task = self.start(work)
        task.add_done_callback(forget_error)
        return task
