"""The caller of a task from this process."""

from typing import Self

from sruserve.server.observation.observation import Description
from sruserve.server.tasks.caller import Caller


class LocalCaller(Caller):
    """A call from Python; it leaves when its task is cancelled.

    A context manager: its input is counted until the block ends at the latest.
    """

    __slots__ = ()

    def describe(self) -> Description:
        return Description("python", self.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.submitted()
