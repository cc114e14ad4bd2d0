"""The ids of streams that have expired, to distinguish them from unknown ones."""

from collections import OrderedDict, defaultdict

from sruserve.server.streams.record import Key

_MAX_IDS = 1 << 16


class Tombstones:
    """The ids that expired last, as many for each tenant. tenants: their number."""

    def __init__(self, tenants: int) -> None:
        self._ids: defaultdict[bytes, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._max_ids = _MAX_IDS // max(1, tenants)

    def __contains__(self, key: Key) -> bool:
        """Whether a stream of this tenant and id has expired."""
        return key[1] in self._ids.get(key[0], ())

    def add(self, key: Key) -> None:
        """Note that a stream has expired."""
        ids = self._ids[key[0]]
        ids[key[1]] = None
        if len(ids) > self._max_ids:
            ids.popitem(last=False)

    def remove(self, key: Key) -> None:
        """Forget an id, which a stream has again."""
        self._ids[key[0]].pop(key[1], None)
