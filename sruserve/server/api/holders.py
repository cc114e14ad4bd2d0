"""Who still needs a model that is being unloaded."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Holders:
    """How many hold a model that may be unloaded meanwhile; of the event loop's thread."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """While the block runs, the model's engine takes jobs."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def gone(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
