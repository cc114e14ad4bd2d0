"""Ask a model for several groups of lines side by side, as many as it has room for."""

import asyncio
from collections.abc import Sequence

from sruserve.api.local_model import LocalModel
from sruserve.batch.answers import Answer, answer
from sruserve.batch.entries import Entry
from sruserve.server.errors import Overloaded


class Asking:
    """Groups that are computed side by side: one that has no room waits until another has ended.

    The groups of a run fill the memory that a server protects from its clients, such as that of
    beams. So a refusal for lack of it ends no run, unless a group is refused alone.
    """

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._running = 0  # groups that may have what others wait for
        self._one_ended = asyncio.Event()

    async def answer(self, entries: Sequence[Entry]) -> list[Answer]:
        """See `answers.answer`."""
        alone = False
        while True:
            ended, self._running = True, self._running + 1
            try:
                return await answer(self._model, entries)
            except Overloaded:
                again, alone = alone, self._running == 1
                if again and alone:
                    raise
                ended = False
            finally:
                self._running -= 1
                if ended:
                    self._one_ended.set()
                    self._one_ended = asyncio.Event()
            if not alone:
                await self._one_ended.wait()
