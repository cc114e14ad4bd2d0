"""One bound on what is held in memory at a time: bytes, numbers, calls, whatever is counted."""

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

    def grow(self, amount: int) -> None:
        """Hold so much more, or raise what the budget refuses with and hold what was held."""
        if not self._released:
            self._budget._take(self, self.owner, amount)
            self.amount += amount

    def resize(self, amount: int) -> None:
        """Hold this amount instead, or raise what the budget refuses with and change nothing."""
        if amount > self.amount:
            self.grow(amount - self.amount)
        elif amount < self.amount:
            self._budget._give_back(self.owner, self.amount - amount)
            self.amount = amount

    def move_to(self, owner: Hashable) -> None:
        """Hold it for another owner, or raise what the budget refuses with and change nothing."""
        self._budget._check_share(owner, self.amount)
        self._budget._give_back(self.owner, self.amount)
        self.owner = owner
        self._budget._put(owner, self.amount)

    def release(self) -> None:
        """Hold nothing any more; a second time does nothing."""
        self._budget._give_back(self.owner, self.amount)
        self.amount = 0
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Budget:
    """What all holders may hold together, on one thread.

    A holder that is alone may hold any amount: what is too much for one has bounds of its own.

    limit: of all holders together.
    refuse: makes the error of a refusal.
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
    ) -> None:
        self.limit, self.share, self._yields = limit, share, yields
        self.held = 0
        self._refuse = refuse
        self._of_owner: defaultdict[Hashable, int] = defaultdict(int)

    def hold(self, amount: int = 0, owner: Hashable = None) -> Hold:
        """Begin to hold an amount, or raise the budget's error."""
        hold = Hold(self, owner)
        hold.grow(amount)
        return hold

    def _take(self, hold: Hold, owner: Hashable, amount: int) -> None:
        if not amount:
            return
        others = self.held - hold.amount
        if others and self.held + amount > self.limit:
            raise self._refuse()
        self._check_share(owner, amount, hold.amount)
        self._put(owner, amount)

    def _check_share(self, owner: Hashable, amount: int, of_hold: int = 0) -> None:
        """Raise if an owner may not hold so much more; `of_hold`: what its holder has already."""
        if owner is None or self.share is None or not amount:
            return
        own = self._of_owner.get(owner, 0)
        most = min(self.share, self.limit - self.held - amount) if self._yields else self.share
        if own > of_hold and own + amount > most:
            raise self._refuse()

    def _put(self, owner: Hashable, amount: int) -> None:
        self.held += amount
        if owner is not None and amount:
            self._of_owner[owner] += amount

    def _give_back(self, owner: Hashable, amount: int) -> None:
        self.held -= amount
        if owner is not None and amount:
            self._of_owner[owner] -= amount
            if not self._of_owner[owner]:
                del self._of_owner[owner]
