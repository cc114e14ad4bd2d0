"""The catalogue of served models."""

from collections.abc import Iterable, Iterator, Mapping

from sruserve.server.errors import InvalidRequest, ModelNotFound, WrongTask
from sruserve.server.repository.served_model import ServedModel


class Catalogue(Mapping[str, ServedModel]):
    """All served models by id; only `Repository` changes it."""

    def __init__(self, served: Iterable[ServedModel] = ()) -> None:
        self._by_name = {model.name: model for model in served}

    def put(self, served: ServedModel) -> ServedModel | None:
        """Add a model; returns the model of the same name that it replaces, if any."""
        replaced = self._by_name.get(served.name)
        self._by_name[served.name] = served
        return replaced

    def take(self, name: str) -> ServedModel:
        """Remove and return a model; raises `ModelNotFound`."""
        served = self[name]
        del self._by_name[name]
        return served

    def version(self, name: str, version: str) -> ServedModel:
        """The model if this version of it is served; else raises `ModelNotFound`."""
        served = self[name]
        if version != served.version:
            raise ModelNotFound(
                f"there is no version {version[:20]!r} of {name}; use version {served.version}",
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
        """The named model, or the only model for the tasks; raises if there is none."""
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
        return [name for name, served in self._by_name.items() if served.model.config.task in tasks]

    def streaming(self) -> list[str]:
        """The ids of the models that can continue from a state."""
        return [
            name
            for name, served in self._by_name.items()
            if served.model.not_streamable_because is None
        ]
