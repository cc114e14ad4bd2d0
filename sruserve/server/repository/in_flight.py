"""Who still needs a model that is being unloaded."""

import asyncio


class InFlight:
    """Counts who holds a model that may be unloaded meanwhile; of the event loop's thread.

    `with` it: while the block runs, the model's engine takes jobs.
    """

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._count += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def wait_idle(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
