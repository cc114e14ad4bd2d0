"""Translations through tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sruserve.server.kserve.datatypes import BYTES, number_tensor, text_tensor
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.parameters import STATE_FIELDS
from sruserve.server.kserve.signature import Signature, Spec
from sruserve.server.kserve.tasks import TensorTask
from sruserve.server.offload import offload
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.per_input import Results
from sruserve.server.tasks.translate import TranslateTask


class Translate(TensorTask):
    """The best translation of each text, with its score."""

    fields: ClassVar[Mapping[str, str]] = {"text_input": "input", "input_ids": "input"}
    options: ClassVar[Sequence[str]] = ("beam_size", "length_penalty", "max_tokens")

    def __init__(self, served: ServedTranslator, task: TranslateTask, max_batch_size: int) -> None:
        self.schema = task.schema
        self._task = task
        self._reads = served.model.source_text is not None
        self._writes = served.model.target_text is not None
        reads = (
            Spec("text_input", BYTES, (1,)) if self._reads else Spec("input_ids", "INT64", (-1,))
        )
        writes = (
            Spec("text_output", BYTES, (1,)) if self._writes else Spec("output_ids", "INT64", (-1,))
        )
        outputs = (writes, Spec("finish_reason", BYTES, (1,)), Spec("score", "FP64", (1,)))
        batches = self._reads and self._writes
        self.signature = Signature((reads,), outputs, max_batch_size if batches else 0)

    def check_fields(self, served: ServedTranslator, fields: Mapping[str, Any]) -> None:
        for parameter, field in STATE_FIELDS.items():
            if fields.get(field) not in (None, False):
                served.check_streams(parameter)

    async def run(
        self, caller: Caller, served: ServedTranslator, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        request = request.model_copy(update={"scores": True})
        with await self._task.run(caller, request, served, cost) as results:
            return await offload(results.large, self._tensors, served, results), None

    def _tensors(self, served: ServedTranslator, results: Results) -> list[Tensor]:
        described = [self._task.describe(served, item, each) for item, each in results.results]
        shape = (len(described), 1) if self.signature.max_batch_size else (1,)
        if self._writes:
            written = text_tensor("text_output", shape, [each["text"] for each in described])
        else:
            ids = described[0]["token_ids"]
            written = number_tensor("output_ids", "INT64", (len(ids),), ids)
        return [
            written,
            text_tensor("finish_reason", shape, [each["finish_reason"] for each in described]),
            number_tensor("score", "FP64", shape, [each["score"] for each in described]),
        ]
