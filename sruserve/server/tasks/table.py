"""The table of all tasks: a new task is one file and one entry of `TABLE`."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.tasks.answer import AnswerTask
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.embed import EmbedTask
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.regress import RegressTask
from sruserve.server.tasks.score import ScoreTask
from sruserve.server.tasks.tag import TagTask
from sruserve.server.tasks.task import Resources, Task
from sruserve.server.tasks.tokenize import DetokenizeTask, TokenizeTask
from sruserve.server.tasks.translate import TranslateTask

AnyTask = Task[Any, Any]
T = TypeVar("T", bound=AnyTask)

Table = tuple[type[AnyTask], ...]

# What protocols need to know of a task are its class attributes. The order is that of the routes.
TABLE: Table = (
    ClassifyTask,
    TagTask,
    RegressTask,
    AnswerTask,
    EncodeTask,
    EmbedTask,
    ScoreTask,
    TokenizeTask,
    DetokenizeTask,
    CompleteTask,
    TranslateTask,
)


def default_tasks(table: Table = TABLE) -> dict[str, type[AnyTask]]:
    """The task of a request that names a model alone, by the model's own task.

    Raises `AssertionError` if a model's task has several, or only tasks that a field chooses.
    """
    defaults: dict[str, type[AnyTask]] = {}
    for task in table:
        if task.is_default and task.chosen_by is None:
            for name in task.names():
                other = defaults.setdefault(name, task)
                assert other is task, f"{other} and {task} are both the default for '{name}'"
    for task in table:
        missing = set(task.names()) - defaults.keys()
        assert not missing or task.chosen_by is None, f"{task} has no default beside it: {missing}"
    return defaults


class Tasks:
    """One task of each class in a table."""

    def __init__(self, resources: Resources, table: Table = TABLE) -> None:
        self.limits = resources.limits
        self._tasks = {task: task(resources) for task in table}
        self._default = {name: self._tasks[task] for name, task in default_tasks(table).items()}
        self._chosen: dict[str, list[tuple[str, AnyTask]]] = {name: [] for name in self._default}
        for task in self:
            if task.chosen_by is not None:
                for name in task.names():
                    self._chosen[name].append((task.chosen_by, task))

    @classmethod
    def create(
        cls,
        catalogue: Catalogue,
        limits: InputLimits,
        constraints: ConstraintCache,
        table: Table = TABLE,
    ) -> "Tasks":
        """Create the tasks of a server."""
        return cls(Resources(catalogue, limits, constraints), table)

    def __getitem__(self, task: type[T]) -> T:
        """The task of a class."""
        return cast("T", self._tasks[task])

    def __iter__(self) -> Iterator[AnyTask]:
        return iter(self._tasks.values())

    def of_model(self, name: str, has: Callable[[str], bool] | None = None) -> AnyTask:
        """The task of a request that names a model only. name: of the task in the model's config.

        has: whether the request has a field; None: it has none that chooses a task.
        """
        if has is not None:
            for field, task in self._chosen[name]:
                if has(field):
                    return task
        return self._default[name]
