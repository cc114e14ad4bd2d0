"""Choose the task of a model, and the outputs of a reply."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.server.kserve.answer import Answer
from sruserve.server.kserve.datatypes import BYTES
from sruserve.server.kserve.generate import Generate
from sruserve.server.kserve.messages import RequestedOutput, Tensor
from sruserve.server.kserve.tasks import Classify, Compare, Encode, Regress, Tag, TensorTask
from sruserve.server.kserve.translate import Translate
from sruserve.server.offload import Waiter, offload
from sruserve.server.repository.served import Served
from sruserve.server.tasks.limits import NUMBER_BYTES
from sruserve.server.tasks.table import Tasks

# Values that are formatted on the event loop: a millisecond at most, since each is a text of its
# own and takes about 20 times as long as a number that LONG_CHARACTERS counts.
_LOOP_VALUES = 512
_TURN_TEXTS = 8 << 10  # texts that are formatted in one turn of a thread: about 15 milliseconds
_TEXT_NUMBERS = 6  # the numbers that take as many bytes as a value's text


ENCODINGS: dict[str, Callable[[Any, Any, int], TensorTask]] = {
    "classify": Classify,
    "pair": Compare,
    "tag": Tag,
    "regress": Regress,
    "answer": Answer,
    "encode": Encode,
    "generate": Generate,
    "translate": Translate,
}
"""How tensors encode the task of a model, by the task's name in the model's configuration."""


def task_of(model: Served, tasks: Tasks) -> TensorTask:
    """The task of a model."""
    return ENCODINGS[model.task](model, tasks.of_model(model.task), tasks.limits.inputs)


def reply_numbers(outputs: Sequence[Tensor], requested: Sequence[RequestedOutput]) -> int:
    """The approximate number of numbers in a reply, before and after `choose_outputs`."""
    counts = {output_request.name: output_request.classes for output_request in requested}
    numbers = 0
    for output in outputs:
        width, size = output.shape[-1], len(output.values)
        if classes := counts.get(output.name, 0):
            size = _TEXT_NUMBERS * prod(output.shape[:-1]) * min(classes, width)
        elif output.datatype == BYTES and width == 1:  # texts; the labels of steps are short
            size += sum(map(len, output.values)) // NUMBER_BYTES
        numbers += size
    return numbers


async def choose_outputs(
    caller: Waiter,
    outputs: Sequence[Tensor],
    requested: Sequence[RequestedOutput],
    labels: Sequence[str],
    *,
    loop_values: int = _LOOP_VALUES,
    turn_texts: int = _TURN_TEXTS,
) -> list[Tensor]:
    """The requested outputs, in their order; without requests, all outputs.

    caller: the request, whose client may leave while texts are formatted.
    labels: names of the entries of `scores`, for the classification extension.
    loop_values: of a tensor that is formatted on the event loop. turn_texts: that are formatted in
        one turn of a thread.
    """
    if not requested:
        return list(outputs)
    by_name = {output.name: output for output in outputs}
    chosen = []
    for output_request in requested:
        tensor = by_name[output_request.name]
        if output_request.classes:
            tensor = await _classify(
                caller, tensor, output_request.classes, labels, loop_values, turn_texts
            )
        chosen.append(tensor)
    return chosen


async def _classify(
    caller: Waiter,
    tensor: Tensor,
    count: int,
    labels: Sequence[str],
    loop_values: int,
    turn_texts: int,
) -> Tensor:
    """The highest values of each row as `value:index:label`."""
    assert isinstance(tensor.values, np.ndarray)
    *before, width = tensor.shape
    rows = tensor.values.reshape(prod(before), width)
    named = labels if width == len(labels) else ()
    long = rows.size > loop_values
    arguments = rows, min(count, width)
    values, indices = await offload(long, _highest, *arguments, cost=rows.nbytes, caller=caller)
    texts: list[bytes] = []
    for at in range(0, len(values), turn_texts):
        part = values[at : at + turn_texts], indices[at : at + turn_texts], named
        texts += await offload(long, _texts, *part, cost=part[0].nbytes, caller=caller)
    return Tensor(tensor.name, BYTES, (*before, min(count, width)), texts)


def _highest(rows: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The highest values of each row, and their places in it; numpy releases the interpreter."""
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(rows, order, 1).reshape(-1), order.reshape(-1)


def _texts(values: NDArray[Any], indices: NDArray[np.int64], labels: Sequence[str]) -> list[bytes]:
    pairs = zip(values, indices.tolist(), strict=True)
    if not labels:
        return [f"{value}:{index}".encode() for value, index in pairs]
    return [f"{value}:{index}:{labels[index]}".encode() for value, index in pairs]
