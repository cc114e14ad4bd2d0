"""The versions of one model that are served at once."""

from collections.abc import Mapping, Sequence

from sruserve.server.repository.served import Served
from sruserve.server.repository.split import Split


class Versions:
    """What is served under one name: a current version, and others whose states may arrive.

    all: in the order in which they were loaded. Of two with the same number, the later one has its
        id, and only states reach the earlier one.
    current: the one that was loaded last as the newest of its folder.
    split: divides new requests; None: the current version gets them all.
    prepared: loaded, and about to be served by all workers; only states reach them.
    """

    def __init__(self, current: Served) -> None:
        self.all: list[Served] = [current]
        self.current = current
        self.split: Split | None = None
        self.prepared: list[Served] = []

    @property
    def sole(self) -> bool:
        """Whether there is only one version, so that every state belongs to it or to none."""
        return len(self.all) + len(self.prepared) == 1

    @property
    def default(self) -> Served:
        """The version that stands for the model: the current one, if the split does not leave it
        out."""
        weights = self.split.weights if self.split is not None else {}
        if self.split is None or weights.get(self.current):
            return self.current
        return max(weights, key=weights.__getitem__)

    @property
    def numbered(self) -> dict[str, Served]:
        """The versions that have an id, by number, the lowest first."""
        by_number = {served.version: served for served in self.all}
        return dict(sorted(by_number.items(), key=lambda item: int(item[0])))

    @property
    def older(self) -> list[Served]:
        """The versions that new requests reach only by their number, in the order of their end."""
        weights = self.split.weights if self.split is not None else {}
        older = [each for each in self.all if each is not self.current and each not in weights]
        return sorted(older, key=self._end_key)

    def first_to_end(self) -> list[Served]:
        """All versions, in the order in which a limit ends them; the current one is the last."""
        return sorted(self.all, key=lambda each: (each is self.current, *self._end_key(each)))

    def _end_key(self, served: Served) -> tuple[bool, float]:
        """A version whose engine another one uses ends first; others by their last states."""
        return not self.shares(served), served.life.last_at

    def shares(self, served: Served) -> bool:
        """Whether another version has the same weights, and so the same engine."""
        return any(each is not served and each.engine is served.engine for each in self.all)

    def of_weights(self, weights: str) -> Served | None:
        """The version with these weights that was loaded last, if any."""
        for served in reversed((*self.all, *self.prepared)):
            if served.weights == weights:
                return served
        return None

    def put(self, served: Served) -> None:
        """Add a version, in place of one with the same number and weights."""
        same = [each for each in self.all if _same(each, served)]
        self.all = [*(each for each in self.all if each not in same), served]
        self.forget(served)
        if self.current in same:
            self.current = served
        if self.split is not None:  # its versions are looked up again
            numbered = self.numbered
            weights = {each.version: weight for each, weight in self.split.weights.items()}
            self.divide({number: weights[number] for number in weights if number in numbered})

    def forget(self, served: Served) -> None:
        """Remove a version from the prepared ones."""
        self.prepared = [each for each in self.prepared if each is not served]

    def drop(self, served: Served) -> None:
        """Remove one of several versions."""
        self.all = [each for each in self.all if each is not served]
        numbered = self.numbered
        if self.current is served:
            self.current = next(reversed(numbered.values()))
        if self.split is not None:
            rest = {each: weight for each, weight in self.split.weights.items() if each in self.all}
            self.split = Split(rest) if any(rest.values()) else None

    def divide(self, weights: Mapping[str, int]) -> None:
        """Divide new requests among versions by number; empty: no longer."""
        numbered = self.numbered
        self.split = (
            Split({numbered[number]: weight for number, weight in weights.items()})
            if any(weights.values())
            else None
        )

    def describe(self) -> str:
        """What is served, for the log."""
        numbers, default = ", ".join(self.numbered), self.default
        weights = self.split.weights if self.split is not None else {default: 1}
        shares = [f"{each.version} ({weight})" for each, weight in weights.items() if weight]
        get = ", ".join(shares) if len(shares) > 1 else default.version
        return f"serving version {numbers} of {default.name}; new requests get {get}"

    def numbers(self) -> Sequence[str]:
        """The numbers of all versions that have an id."""
        return list(self.numbered)


def _same(one: Served, other: Served) -> bool:
    return one.version == other.version and one.engine is other.engine
