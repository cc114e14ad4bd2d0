"""Answers to questions through tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sruserve.server.kserve.datatypes import BYTES, number_tensor, text_tensor
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.signature import Signature, Spec
from sruserve.server.kserve.tasks import TensorTask
from sruserve.server.offload import offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.answer import AnswerTask
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.per_input import Results


class Answer(TensorTask):
    """The best answers to each question, about the context beside it, or about a preset.

    Where a context has fewer spans than others of a batch, empty answers at -1 with score 0 follow.
    """

    fields: ClassVar[Mapping[str, str]] = {"question": "question", "context": "context"}
    options: ClassVar[Sequence[str]] = ("n_best",)

    def __init__(self, served: ServedModel, task: AnswerTask, max_batch_size: int) -> None:
        del served  # tensors are the same for all models
        self.schema = task.schema
        self._task = task
        inputs = (
            Spec("question", BYTES, (1,)),
            Spec("context", BYTES, (1,), replaced_by="preset"),
        )
        outputs = (
            Spec("answers", BYTES, (-1,)),
            Spec("starts", "INT64", (-1,)),
            Spec("ends", "INT64", (-1,)),
            Spec("scores", "FP32", (-1,)),
        )
        self.signature = Signature(inputs, outputs, max_batch_size)

    async def run(
        self, caller: Caller, served: ServedModel, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        with await self._task.run(caller, request, served, cost) as results:
            return await offload(results.large, self._tensors, served, results), None

    def _tensors(self, served: ServedModel, results: Results) -> list[Tensor]:
        lists = [
            self._task.describe(served, item, result)["answers"] for item, result in results.results
        ]
        width = max(map(len, lists))
        none = {"text": "", "start": -1, "end": -1, "score": 0.0}
        rows = [[*answers, *[none] * (width - len(answers))] for answers in lists]
        flat, shape = [answer for row in rows for answer in row], (len(rows), width)

        def column(name: str) -> list[Any]:
            return [answer[name] for answer in flat]

        return [
            text_tensor("answers", shape, column("text")),
            number_tensor("starts", "INT64", shape, column("start")),
            number_tensor("ends", "INT64", shape, column("end")),
            number_tensor("scores", "FP32", shape, column("score")),
        ]
