"""A budget limits an amount that requests hold at the same time: bytes, numbers or calls."""

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Self

from sruserve.server.errors import ServeError


class Hold:
    """An amount that counts against a budget until it is released, as a context manager or not.

    After its release it stays empty, and later changes do nothing.
    """

    __slots__ = ("_budget", "_released", "amount", "owner")

    def __init__(self, budget: "Budget", owner: Hashable) -> None:
        self._budget, self.owner = budget, owner
        self.amount = 0
        self._released = False

    def grow(self, amount: int, beyond: int = 0) -> None:
        """Add to the amount; if the budget refuses, raise its error and change nothing.

        beyond: an allowed excess, for an amount that is about to be released.
        """
        if amount and not self._released:
            self._budget._acquire(self, amount, beyond)
            self.amount += amount

    def resize(self, amount: int, beyond: int = 0) -> None:
        """Hold this amount instead; if the budget refuses, raise its error and change nothing."""
        if amount > self.amount and not self._released:
            self._budget._acquire(self, amount - self.amount, beyond)
            self.amount = amount
        elif amount < self.amount:
            self._budget._release(self.owner, self.amount - amount)
            self.amount = amount

    def move_to(self, owner: Hashable) -> None:
        """Hold it for another owner; if the budget refuses, raise its error and change nothing."""
        self._budget._move(self, owner)
        self.owner = owner

    def release(self, *_: object) -> None:
        """Release the whole amount; a second release does nothing."""
        if self.amount:
            self._budget._release(self.owner, self.amount)
            self.amount = 0
        self._released = True

    def __enter__(self) -> Self:
        return self

    __exit__ = release  # without a call more: every request holds


class Budget:
    """The limit of all holds together, on one thread.

    A single hold may have any amount, because other limits bound a single request.

    limit: of all holds together.
    refuse: makes the error of a refusal.
    strict: the limits apply to a single hold, too.
    share: the limit of one owner, which leaves room for others; None: no limit. Holds without an
        owner have no share.
    yields: an owner's further holds must leave at least as much free as the owner then has, so
        that a few owners together leave room for others, too.
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
        self.used = 0
        self._refuse = refuse
        self._of_owner: defaultdict[Hashable, int] = defaultdict(int)

    def hold(self, amount: int = 0, owner: Hashable = None, beyond: int = 0) -> Hold:
        """Hold an amount, or raise the budget's error. beyond: see `Hold.grow`."""
        hold = Hold(self, owner)
        if amount:
            self._acquire(hold, amount, beyond)
            hold.amount = amount
        return hold

    def _acquire(self, hold: Hold, amount: int, beyond: int) -> None:
        bounded = self._strict or self.used > hold.amount
        if bounded and self.used + amount > self.limit + beyond:
            raise self._refuse()
        if hold.owner is not None:
            self._check_share(hold.owner, amount, hold.amount, beyond, used=self.used)
            self._of_owner[hold.owner] += amount
        self.used += amount

    def _move(self, hold: Hold, owner: Hashable) -> None:
        if owner is not None and hold.amount:
            self._check_share(owner, hold.amount, used=self.used - hold.amount)
            self._of_owner[owner] += hold.amount
        self.used += hold.amount
        self._release(hold.owner, hold.amount)

    def _release(self, owner: Hashable, amount: int) -> None:
        self.used -= amount
        if owner is not None and amount:
            self._of_owner[owner] -= amount
            if not self._of_owner[owner]:
                del self._of_owner[owner]

    def _check_share(
        self, owner: Hashable, amount: int, of_hold: int = 0, beyond: int = 0, *, used: int
    ) -> None:
        """Raise if an owner may not hold `amount` more.

        of_hold: the amount of the growing hold. used: by all, without `amount`.
        """
        own = self._of_owner.get(owner, 0)
        share = min(self.share, self.limit - used - amount) if self._yields else self.share
        if (self._strict or own > of_hold) and own + amount > share + beyond:
            raise self._refuse()
