"""One bound on what is held in memory at a time: bytes, numbers, calls, whatever is counted."""

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Self

from sruserve.server.errors import ServeError


class Hold:
    """An amount that counts against a budget until it is released, as a context manager or not.

    Once released it stays empty, whatever its holder asks for later.
    """

    __slots__ = ("_budget", "_released", "amount", "owner")

    def __init__(self, budget: "Budget", owner: Hashable) -> None:
        self._budget, self.owner = budget, owner
        self.amount = 0
        self._released = False

    def grow(self, amount: int, beyond: int = 0) -> None:
        """Hold so much more, or raise what the budget refuses with and hold what was held.

        beyond: how far the bounds may be exceeded, because as much is about to be released.
        """
        if amount and not self._released:
            self._budget._take(self, amount, beyond)
            self.amount += amount

    def resize(self, amount: int, beyond: int = 0) -> None:
        """Hold this amount instead, or raise what the budget refuses with and change nothing."""
        if amount > self.amount and not self._released:
            self._budget._take(self, amount - self.amount, beyond)
            self.amount = amount
        elif amount < self.amount:
            self._budget._give_back(self.owner, self.amount - amount)
            self.amount = amount

    def move_to(self, owner: Hashable) -> None:
        """Hold it for another owner, or raise what the budget refuses with and change nothing."""
        self._budget._move(self, owner)
        self.owner = owner

    def release(self, *_: object) -> None:
        """Hold nothing any more; a second time does nothing."""
        if self.amount:
            self._budget._give_back(self.owner, self.amount)
            self.amount = 0
        self._released = True

    def __enter__(self) -> Self:
        return self

    __exit__ = release  # no call more: holds are on the path of every request


class Budget:
    """What all holders may hold together, on one thread.

    A holder that is alone may hold any amount: what is too much for one has bounds of its own.

    limit: of all holders together.
    refuse: makes the error of a refusal.
    strict: one that is alone has the same bounds; for what an owner may have, and no more.
    share: the most of one owner, so that it leaves room for others; None: all of it. Holders
        without an owner have no such bound.
    yields: an owner's second hold must leave as much free as the owner then has, so that a few
        owners together leave room for others, too.
    """

    def __init__(
        self,
        limit: int,
        refuse: Callable[[], ServeError],
        share: int | None = None,
        *,
        yields: bool = False,
        strict: bool = False,
    ) -> None:
        self.limit, self.share = limit, sys.maxsize if share is None else share
        self._yields, self._strict = yields, strict
        self.held = 0
        self._refuse = refuse
        self._of_owner: defaultdict[Hashable, int] = defaultdict(int)

    def hold(self, amount: int = 0, owner: Hashable = None, beyond: int = 0) -> Hold:
        """Begin to hold an amount, or raise the budget's error. beyond: as of `Hold.grow`."""
        hold = Hold(self, owner)
        if amount:
            self._take(hold, amount, beyond)
            hold.amount = amount
        return hold

    def _take(self, hold: Hold, amount: int, beyond: int) -> None:
        bounded = self._strict or self.held > hold.amount
        if bounded and self.held + amount > self.limit + beyond:
            raise self._refuse()
        if hold.owner is not None:
            self._check_share(hold.owner, amount, hold.amount, beyond)
            self._of_owner[hold.owner] += amount
        self.held += amount

    def _move(self, hold: Hold, owner: Hashable) -> None:
        if owner is not None and hold.amount:
            self._check_share(owner, hold.amount)
            self._of_owner[owner] += hold.amount
        self.held += hold.amount
        self._give_back(hold.owner, hold.amount)

    def _give_back(self, owner: Hashable, amount: int) -> None:
        self.held -= amount
        if owner is not None and amount:
            self._of_owner[owner] -= amount
            if not self._of_owner[owner]:
                del self._of_owner[owner]

    def _check_share(self, owner: Hashable, amount: int, of_hold: int = 0, beyond: int = 0) -> None:
        """Raise if an owner may not hold so much more; `of_hold`: what its holder has already."""
        own = self._of_owner.get(owner, 0)
        most = min(self.share, self.limit - self.held - amount) if self._yields else self.share
        if (self._strict or own > of_hold) and own + amount > most + beyond:
            raise self._refuse()
