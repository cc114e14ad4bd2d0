"""Who still needs a model that is being unloaded."""

import asyncio


class InFlight:
    """Counts who holds a model that may be unloaded meanwhile; of the event loop's thread.

    `with` it: while the block runs, the model's engine takes jobs.
    """

    def __init__(self) -> None:
        self._count = 0
        self._none: asyncio.Event | None = None  # while somebody waits for it

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count and self._none is not None:
            self._none.set()

    async def wait_idle(self) -> None:
        """Wait until there is none; for one waiter at a time."""
        while self._count:
            self._none = asyncio.Event()
            await self._none.wait()
        self._none = None
