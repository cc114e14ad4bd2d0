"""The catalogue of served models, and the choice of a version for each request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from sruserve.model.versions import VERSION_MARK
from sruserve.server.errors import (
    ModelNotFound,
    StateTampered,
    StateWrongModel,
    WrongTask,
    first_of,
)
from sruserve.server.repository.default_models import DefaultModels, in_words
from sruserve.server.repository.served import Served, versioned
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.repository.versions import Versions
from sruserve.server.state.token import claimed_binding


class Catalogue(Mapping[str, Served]):
    """All served models by name; only `Repository` changes it.

    A name stands for one version of its model; `NAME@VERSION` is the id of a certain one. Iteration
    and length are those of the names.

    defaults: the names of `SRUSERVE_DEFAULT_MODELS`, which requests without one get.
    edition: another object after each change of the models or their ids.
    """

    def __init__(self, served: Iterable[Served] = (), defaults: Sequence[str] = ()) -> None:
        self._defaults = DefaultModels(defaults)
        self._models: dict[str, Versions] = {}
        self._by_id: dict[str, Served] = {}
        # Of requests that name no model, by their tasks; known until a model changes.
        self._unnamed: dict[tuple[str, ...], Served] = {}
        self.edition = object()
        for model in served:
            self.put(model)

    def put(self, served: Served, *, current: bool = True) -> None:
        """Add a version of a model. current: new requests get it."""
        versions = self._models.get(served.name)
        if versions is None:
            versions = self._models[served.name] = Versions(served)
        else:
            versions.put(served)
        if current:
            versions.current = served
        self._publish()

    def prepare(self, served: Served) -> None:
        """Let the states of a version of a served model reach it before `put`."""
        if served.name in self._models:
            self._models[served.name].prepared.append(served)

    def forget(self, served: Served) -> None:
        """Undo `prepare`."""
        if served.name in self._models:
            self._models[served.name].forget(served)

    def divide(self, name: str, weights: Mapping[str, int]) -> None:
        """Divide the new requests of a model among versions; empty: the current one gets them."""
        self._models[name].divide(weights)
        self._publish()

    def drop(self, served: Served) -> None:
        """Remove a version, and with its last one the model."""
        versions = self._models[served.name]
        if len(versions.all) == 1:
            del self._models[served.name]
        else:
            versions.drop(served)
        self._publish()

    def _publish(self) -> None:
        self.edition = object()
        self._unnamed.clear()
        by_id = {}
        for name, versions in self._models.items():
            by_id[name] = versions.default
            by_id |= {served.id: served for served in versions.numbered.values()}
        self._by_id = by_id

    def find(self, name: str) -> Versions | None:
        """The versions of a model, if it is served."""
        return self._models.get(name)

    def every(self) -> Iterator[Served]:
        """All versions of all models, also those that only states reach."""
        for versions in self._models.values():
            yield from (*versions.all, *versions.prepared)

    def listed(self) -> Iterator[tuple[str, Served]]:
        """All ids, each version once: a model's name, then the ids of its other versions."""
        for name, versions in self._models.items():
            default = versions.default
            yield name, default
            for served in reversed(versions.numbered.values()):
                if served is not default:
                    yield served.id, served

    def version(self, name: str, version: str) -> Served:
        """A version of a model, which its id may name already; else raises `ModelNotFound`."""
        served = self[name]
        if name == served.id and version != served.version:
            raise ModelNotFound(
                f"{name} is no version {version[:20]!r}: leave one of them out", param="version"
            )
        return self[versioned(served.name, version)]

    def with_states(self, name: str) -> ServedModel:
        """A model whose streams have states; raises `ModelNotFound`, or `CannotStream`."""
        return with_states(self[name])

    def __getitem__(self, name: str) -> Served:
        try:
            return self._by_id[name]
        except KeyError:
            raise self._not_found(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def choose(
        self, name: str | None, *tasks: str, state: str | list[str | None] | None = None
    ) -> Served:
        """The version for a request of the tasks: of the named model, or of the only one.

        If several models do the tasks and none is named, a state chooses the model that it belongs
        to, and other requests get the default one.

        state: of the request; it goes to its own weights, and takes no turn of a split.
        Raises if there is none, and `StateWrongModel` for states of several versions.
        """
        if name is None:
            served = self._unnamed.get(tasks) if state is None else None
            if served is None:
                served = self._choose_unnamed(tasks, state)
        else:
            served = self._by_id.get(name)
            if served is None:
                raise self._not_found(name)
            if served.task not in tasks:
                raise self._wrong_task(name, tasks)
        if state is not None:
            return self.of_states(served, name, state)
        versions = self._models.get(served.name if name is None else name)
        if versions is None or versions.split is None:
            return served
        return versions.split.next()

    def check_defaults(self) -> None:
        """Raise `SettingsError` if two default models do the same task."""
        self._defaults.check({name: served.task for name, served in self.items()})

    def _choose_unnamed(
        self, tasks: tuple[str, ...], state: str | list[str | None] | None
    ) -> Served:
        """The model for a request that names none."""
        fitting = self.fitting(*tasks)
        if state is not None and len(fitting) > 1:
            token = state if isinstance(state, str) else next(filter(None, state), None)
            with suppress(StateTampered, StateWrongModel):
                owner = None if token is None else self._owner(token)
                if owner is not None and owner.name in fitting:
                    return owner
        served = self._unnamed[tasks] = self._by_id[self._defaults.choose(fitting, tasks)]
        return served

    def _wrong_task(self, name: str, tasks: Sequence[str]) -> WrongTask:
        return WrongTask(
            f"{name} is a model for '{self[name].task}' and this route needs one "
            f"for {in_words(tasks)}; served here: {first_of(self.fitting(*tasks))}",
            param="model",
        )

    def of_states(self, served: Served, named: str | None, state: str | list[str | None]) -> Served:
        """The version with the weights of a request's states, if one is served.

        served: the version for a request without states. named: the id in the request; one of a
        version is kept. Raises `StateWrongModel` for states of several versions.
        """
        versions = self._models.get(served.name)
        if versions is None or versions.sole or named not in (None, served.name):
            return served
        tokens = (state,) if isinstance(state, str) else state
        try:
            weights = {claimed_binding(token).weights for token in tokens if token is not None}
        except StateTampered:
            return served  # which refuses it
        matching = [each for each in map(versions.of_weights, sorted(weights)) if each is not None]
        if len(matching) > 1:
            numbers = " and ".join(sorted((each.version for each in matching), key=int))
            raise StateWrongModel(
                f"the states belong to the versions {numbers} of {served.name}: send the states "
                "of one version in a request",
                param="state",
            )
        return matching[0] if matching else served

    def of_state(self, token: str) -> ServedModel:
        """The version of any model with streams that has the weights of a state.

        Raises `StateTampered`, `StateWrongModel` if none has, or `CannotStream`.
        """
        return with_states(self._owner(token))

    def _owner(self, token: str) -> Served:
        """The version of any model that has the weights of a state; raises as `of_state`."""
        weights = claimed_binding(token).weights
        for served in self.every():
            if served.weights == weights:
                return served
        raise StateWrongModel(
            "the state belongs to a model, weights or a dtype that this server does not have; "
            f"served here: {first_of(self)}",
            param="state",
        )

    def of_weights(self, name: str, weights: str) -> Served:
        """The version with the weights of a stream; the default one if it is not served.

        Raises `ModelNotFound` if no version of the model is served.
        """
        served = self._by_id.get(name)
        if served is None:
            raise self._not_found(name)
        if not weights or served.weights == weights:
            return served
        return self._models[name].of_weights(weights) or served

    def _not_found(self, name: str) -> ModelNotFound:
        model, mark, version = name.rpartition(VERSION_MARK)
        if mark and model in self._models:
            numbers = ", ".join(self._models[model].numbers())
            return ModelNotFound(
                f"there is no version {version[:20]!r} of {model}; served here: {numbers}",
                param="model",
            )
        return ModelNotFound(
            f"there is no model {name[:100]!r}; served here: {first_of(self)}",
            param="model",
        )

    def fitting(self, *tasks: str) -> list[str]:
        """The names of the models for the tasks."""
        return [name for name in self._models if self._by_id[name].task in tasks]

    def streaming(self) -> list[str]:
        """The names of the models that can continue from a state."""
        return [name for name, served in self.items() if served.not_streamable_because is None]
