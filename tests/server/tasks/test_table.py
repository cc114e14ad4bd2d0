"""The table of tasks, and what protocols have beside it."""

from typing import get_args

import pytest

from sruserve.api.calls import METHODS
from sruserve.model.names import ImportTask
from sruserve.server.app import Application
from sruserve.server.http.v1_routes import ENCODINGS as REPLIES
from sruserve.server.http.v1_routes import routes
from sruserve.server.kserve.choosing import ENCODINGS as TENSORS
from sruserve.server.settings import Settings
from sruserve.server.tasks.table import TABLE, AnyTask, default_tasks
from sruserve.server.tasks.translate import TranslateTask
from tests.server.toy_task import NormTask

MODEL_TASKS = set(get_args(ImportTask))


def test_every_model_has_a_task_that_all_protocols_can_ask_for() -> None:
    assert set(default_tasks()) == MODEL_TASKS
    assert set(TENSORS) == MODEL_TASKS
    assert set(METHODS) == MODEL_TASKS


class ChosenTask(TranslateTask):
    """A task that a field chooses."""

    chosen_by = "beams"


@pytest.mark.parametrize(
    ("task", "instead_of", "problem"),
    [
        (NormTask, None, "both the default for 'encode'"),
        (ChosenTask, TranslateTask, "no default beside it: {'translate'}"),
    ],
)
def test_a_mistake_in_the_table_ends_a_server_before_it_loads_models(
    task: type[AnyTask], instead_of: type[AnyTask] | None, problem: str
) -> None:
    table = (*(each for each in TABLE if each is not instead_of), task)
    with pytest.raises(AssertionError, match=problem):
        Application(Settings(), table=table)


def test_every_route_has_its_own_name_and_reply() -> None:
    routed = [task for task in TABLE if task.route is not None]
    assert set(REPLIES) == set(routed)
    assert len({route.path for route in routes()}) == len(routed)
    assert len({task.prefix for task in routed}) == len(routed)


def test_each_task_has_its_own_schema() -> None:
    assert len({task.schema for task in TABLE}) == len(TABLE)


def test_a_task_is_one_class_above_the_base_of_all() -> None:
    for task in TABLE:
        assert [base.__name__ for base in task.__mro__[1:]] == ["Task", "Generic", "object"]
