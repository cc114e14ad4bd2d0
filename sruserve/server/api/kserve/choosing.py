"""Which task a model is for, and which of its outputs a request gets."""

from collections.abc import Sequence

import numpy as np

from sruserve.server.api.kserve.datatypes import text_tensor
from sruserve.server.api.kserve.generate import Generate
from sruserve.server.api.kserve.messages import RequestedOutput, Tensor
from sruserve.server.api.kserve.tasks import Classify, Compare, Encode, Tag, Task
from sruserve.server.api.routes import Routes
from sruserve.server.api.served import Served
from sruserve.server.errors import InvalidRequest


def task_of(served: Served, routes: Routes) -> Task:
    """How to ask a model."""
    most = routes.classify.limits.inputs
    match served.model.config.task:
        case "classify":
            return Classify(served, routes.classify, most)
        case "pair":
            return Compare(served, routes.classify, most)
        case "tag":
            return Tag(served, routes.tag, most)
        case "encode":
            return Encode(served, routes.encode, most)
        case _:
            return Generate(served, routes.complete, most)


def choose_outputs(
    outputs: Sequence[Tensor], requested: Sequence[RequestedOutput], labels: Sequence[str]
) -> list[Tensor]:
    """The outputs that were asked for, in that order; all if none were.

    labels: names of the entries of `scores`, for the classification extension.
    """
    if not requested:
        return list(outputs)
    by_name = {output.name: output for output in outputs}
    chosen = []
    for each in requested:
        count = each.parameters.get("classification", 0)
        tensor = by_name[each.name]
        chosen.append(_classify(tensor, count, labels) if count else tensor)
    return chosen


def _classify(tensor: Tensor, count: object, labels: Sequence[str]) -> Tensor:
    """The highest values of each row as `value:index:label`."""
    values = tensor.values
    width = tensor.shape[-1]
    if type(count) is not int or count < 1 or not isinstance(values, np.ndarray) or not width:
        raise InvalidRequest(
            f"'classification' of output '{tensor.name}' must be a number of classes, and the "
            "output one of numbers",
            param="outputs",
        )
    count = min(count, width)
    texts = []
    for row in values.reshape(-1, width):
        for index in np.argsort(-row, kind="stable")[:count].tolist():
            label = f":{labels[index]}" if width == len(labels) else ""
            texts.append(f"{row[index]}:{index}{label}")
    return text_tensor(tensor.name, (*tensor.shape[:-1], count), texts)
