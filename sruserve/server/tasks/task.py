"""The base of all tasks: which models a task fits, and which of them a request gets."""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served import Served
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import ModelRequest

Body = TypeVar("Body", bound=ModelRequest)
Model = TypeVar("Model", bound=Served)


@dataclass(frozen=True)
class Resources:
    """What the tasks of a server share."""

    catalogue: Catalogue
    limits: InputLimits
    constraints: ConstraintCache


class Task(Generic[Body, Model]):
    """What can be asked of models. A subclass has `run`, and says what it reads and returns.

    The docstring of a subclass documents its route, unless HTTP has a function for it.

    name: the task of its models, in their configuration.
    other_names: further tasks whose models it uses.
    schema: the fields of a request.
    route: its name under `/v1`; None: a protocol that serves it has a route of its own.
    prefix: of the ids of its replies.
    is_default: a request that names a model, and no task, is for this one.
    chosen_by: such a request is for this task if it has the field, else for another one; None: any.
    streams: held streams and sockets run it, one step after another.
    """

    name: ClassVar[str]
    other_names: ClassVar[tuple[str, ...]] = ()
    schema: ClassVar[type[ModelRequest]]
    route: ClassVar[str | None] = None
    prefix: ClassVar[str] = "res"
    is_default: ClassVar[bool] = True
    chosen_by: ClassVar[str | None] = None
    streams: ClassVar[bool] = False

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.catalogue, self.limits = resources.catalogue, resources.limits

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The tasks whose models it uses."""
        return cls.name, *cls.other_names

    @property
    def models(self) -> list[str]:
        """The names of its models."""
        return self.catalogue.fitting(*self.names())

    def choose(self, request: Any) -> Model:
        """The model for a request, in the version that its states belong to.

        Raises `ModelNotFound`, `WrongTask`, `InvalidRequest` or `StateWrongModel`.
        """
        names = self.name, *self.other_names
        chosen: Any = self.catalogue.choose(request.model, *names, state=request.state)
        model: Model = chosen  # all models of a task are of one class
        return model
