"""Who waits to parse: owners take turns, and so do the kinds of what waits for one owner."""

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar


class Waiting(Enum):
    """What waits. The kinds of one owner take turns, so that none waits for all of another."""

    SHORT = auto()  # one piece: a probe, or a head with a small body; work that fits into a turn
    HEAD = auto()  # a longer request, whose owner is known once its head is parsed
    LONG = auto()  # the rest of a longer request, a request after others, or longer work


class Queueable(Protocol):
    """A connection, or work of one, that can wait in the queue."""

    @property
    def owner(self) -> Hashable:
        """The owner of the connection: a tenant, or the clients of an address."""
        ...

    @property
    def waiting(self) -> Waiting:
        """What of the connection waits."""
        ...


W = TypeVar("W", bound=Queueable)


class ParseQueue(Generic[W]):
    """Waiters of one owner and kind leave in the order of their arrival."""

    def __init__(self) -> None:
        self._owners: OrderedDict[Hashable, OrderedDict[Waiting, OrderedDict[W, None]]]
        self._owners = OrderedDict()
        # as of the beginning of the wait
        self._places: dict[W, tuple[Hashable, Waiting]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._places

    def has_owner(self, owner: Hashable) -> bool:
        """Whether anything of an owner waits."""
        return owner in self._owners

    def add(self, waiter: W) -> None:
        """Queue a waiter, unless it waits already."""
        if waiter not in self._places:
            owner, kind = self._places[waiter] = waiter.owner, waiter.waiting
            kinds = self._owners.setdefault(owner, OrderedDict())
            kinds.setdefault(kind, OrderedDict())[waiter] = None

    def remove(self, waiter: W) -> None:
        """Remove a waiter, if it waits."""
        if waiter in self._places:
            owner, kind = self._places.pop(waiter)
            kinds = self._owners[owner]
            del kinds[kind][waiter]
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del self._owners[owner]

    def pop(self) -> W:
        """Remove and return the first waiter of the next kind of the next owner."""
        owner, kinds = next(iter(self._owners.items()))
        self._owners.move_to_end(owner)
        kind, waiters = next(iter(kinds.items()))
        kinds.move_to_end(kind)
        waiter = next(iter(waiters))
        self.remove(waiter)
        return waiter
