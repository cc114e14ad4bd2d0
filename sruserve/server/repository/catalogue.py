"""The models that are served now."""

from collections.abc import Iterable, Iterator, Mapping

from sruserve.server.errors import InvalidRequest, ModelNotFound, WrongTask
from sruserve.server.repository.served_model import ServedModel


class Catalogue(Mapping[str, ServedModel]):
    """All served models, by id; `Repository` alone changes it."""

    def __init__(self, served: Iterable[ServedModel] = ()) -> None:
        self._by_name = {each.name: each for each in served}

    def put(self, served: ServedModel) -> ServedModel | None:
        """Serve a model from now on; returns the one of the same name that it replaces."""
        replaced = self._by_name.get(served.name)
        self._by_name[served.name] = served
        return replaced

    def take(self, name: str) -> ServedModel:
        """Serve the model no more, and return it; raises `ModelNotFound`."""
        served = self[name]
        del self._by_name[name]
        return served

    def version(self, name: str, version: str) -> ServedModel:
        """The model if that version of it is served, or raise `ModelNotFound`."""
        served = self[name]
        if version != served.version:
            raise ModelNotFound(
                f"there is no version {version[:20]!r} of {name}; served is {served.version}",
                param="version",
            )
        return served

    def __getitem__(self, name: str) -> ServedModel:
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelNotFound(
                f"there is no model {name[:100]!r}; served here: {', '.join(self) or 'none'}",
                param="model",
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def choose(self, name: str | None, *tasks: str) -> ServedModel:
        """The named model, or the only one for the tasks; raises if there is no such model."""
        if name is not None and self[name].model.config.task in tasks:
            return self[name]
        needed = " or ".join(f"'{task}'" for task in tasks)
        fitting = self.fitting(*tasks)
        if name is not None:
            raise WrongTask(
                f"{name} is a model for '{self[name].model.config.task}' and this route needs one "
                f"for {needed}; served here: {', '.join(fitting) or 'none'}",
                param="model",
            )
        if not fitting:
            raise InvalidRequest(f"none of the served models is for {needed}", param="model")
        if len(fitting) > 1:
            raise InvalidRequest(
                f"'model' is missing, and {len(fitting)} of the served models are for {needed}: "
                f"choose among {', '.join(fitting)}",
                param="model",
            )
        return self._by_name[fitting[0]]

    def fitting(self, *tasks: str) -> list[str]:
        """The ids of the models for the tasks."""
        return [name for name, each in self._by_name.items() if each.model.config.task in tasks]

    def streaming(self) -> list[str]:
        """The ids of the models that go on from a state."""
        return [
            name for name, each in self._by_name.items() if each.model.network.supports_streaming
        ]
