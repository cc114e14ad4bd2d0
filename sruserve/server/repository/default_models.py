"""Choose the model for requests that name none, where several models do the task."""

from collections.abc import Iterable, Mapping, Sequence

from sruserve.server.errors import InvalidRequest, first_of
from sruserve.server.settings import SettingsError, variable_name

SETTING = variable_name("default_models")


class DefaultModels:
    """The names of `SRUSERVE_DEFAULT_MODELS`; those that are not served change nothing."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = names

    def check(self, tasks: Mapping[str, str]) -> None:
        """Raise `SettingsError` if two of the names do the same task.

        tasks: of the served models, by name.
        """
        by_task: dict[str, str] = {}
        for name in self._names:
            if name not in tasks:
                continue
            other = by_task.setdefault(tasks[name], name)
            if other != name:
                raise SettingsError(
                    f"{SETTING} names {other} and {name}, which are both for '{tasks[name]}': name "
                    "at most one model for each task"
                )

    def choose(self, fitting: Sequence[str], tasks: Sequence[str]) -> str:
        """Return the only name, or else the default one; raises `InvalidRequest`.

        fitting: the names of the models that do the task.
        tasks: those of the request.
        """
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise InvalidRequest(
                f"none of the served models is for {in_words(tasks)}: ask the operator to add one",
                param="model",
            )
        defaults = [name for name in fitting if name in self._names]
        if len(defaults) == 1:
            return defaults[0]
        named = f"names several of them: {first_of(defaults)}" if defaults else "names none of them"
        needed = in_words(tasks)
        raise InvalidRequest(
            f"'model' is missing, and {len(fitting)} of the served models are for {needed}: choose "
            f"among {first_of(fitting)} ({SETTING} {named})",
            param="model",
        )


def in_words(tasks: Iterable[str]) -> str:
    """Tasks as a message has them."""
    return " or ".join(f"'{task}'" for task in tasks)
