"""Which of gRPC's connections give way, so that no address keeps all others out.

gRPC's core accepts connections by itself, and limits only the number of all.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

_IGNORED_SECONDS = 10.0  # one that opens more than its share at once is quiet for so long


class Connection(NamedTuple):
    """An open connection of this process, whose descriptor may belong to another one later.

    inode: the socket's, which the kernel counts up.
    """

    descriptor: int
    inode: int


class ConnectionShares:
    """While more than three quarters of the connections are open, the largest address gives way.

    It closes its newest ones, and opens no more for ten seconds. An address keeps an eighth of the
    limit in any case.

    max_open: gRPC's own limit, beyond which it closes each new connection.
    """

    def __init__(self, max_open: int) -> None:
        self.max_shared = max_open - max_open // 4
        self._least = max(1, max_open // 8)
        self._ignored: dict[str, float] = {}  # until when

    def excess(self, networks: Mapping[Connection, str], now: float) -> list[Connection]:
        """The connections to close. networks: of all connections, the oldest first."""
        counts = Counter(networks.values())
        self._ignored = {each: end for each, end in self._ignored.items() if end > now}
        closed: Counter[str] = Counter()
        for _ in range(len(networks) - self.max_shared):
            network, largest = counts.most_common(1)[0]
            if largest <= self._least:
                break
            counts[network] -= 1
            closed[network] += 1
            self._ignored[network] = now + _IGNORED_SECONDS
        excess = []
        for connection in reversed(list(networks)) if closed else ():
            if closed[network := networks[connection]]:
                closed[network] -= 1
                excess.append(connection)
        return excess

    @property
    def ignored(self) -> tuple[str, ...]:
        """The networks that may open no connection now."""
        return tuple(self._ignored)
