"""The versions that are served, with their weights: read with the page.

All workers of a server serve the same, so the worker that renders `/metrics` speaks for all. A file
of a worker could not forget a version that has ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sruserve.server.metrics.definitions import MODEL_INFO


class ServedVersion(NamedTuple):
    """A version. digest: the beginning of its folder's. state: as in `sru_model_versions`."""

    version: str
    digest: str
    state: str


class ServedVersions(Collector):
    """A series for each version that this process serves, and none for one that has ended."""

    def __init__(self) -> None:
        self._versions: dict[str, Sequence[ServedVersion]] = {}

    def set(self, model_name: str, versions: Iterable[ServedVersion]) -> None:
        """Set the versions of a model; none: it is no longer served."""
        self._versions = {**self._versions, model_name: tuple(versions)}

    def collect(self) -> Iterable[Metric]:
        info = _family()
        for model_name, versions in self._versions.items():  # never changed, only replaced
            for each in versions:
                labels = dict(zip(MODEL_INFO.labels, (model_name, *each), strict=True))
                info.add_sample(MODEL_INFO.name, labels, 1)
        return (info,)

    def describe(self) -> Iterator[Metric]:
        """The family, so that registering does not read anything."""
        yield _family()


def _family() -> Metric:
    return Metric(MODEL_INFO.name, MODEL_INFO.help, MODEL_INFO.type)


SERVED_VERSIONS = ServedVersions()
