"""Which models streams belong to, so that a step reads its stream only once it has the lease."""

from collections import OrderedDict

from sruserve.server.streams.record import Key

_MAX_STREAMS = 1 << 14  # each of about 300 bytes


class KnownModels:
    """The names of models and their weights, for the streams that were read or written last."""

    def __init__(self) -> None:
        self._models: OrderedDict[Key, tuple[str, str]] = OrderedDict()

    def get(self, key: Key) -> tuple[str, str] | None:
        """The name of a stream's model and its weights, if they are known."""
        return self._models.get(key)

    def remember(self, key: Key, model: str, weights: str) -> None:
        """Keep the model and the weights of a stream."""
        self._models[key] = model, weights
        self._models.move_to_end(key)
        if len(self._models) > _MAX_STREAMS:
            self._models.popitem(last=False)
