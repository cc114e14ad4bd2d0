"""Completions through tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sruserve.server.kserve.datatypes import BYTES, number_tensor, text_tensor
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.signature import Signature, Spec
from sruserve.server.kserve.sources import source
from sruserve.server.kserve.tasks import TensorTask
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.complete import CompleteTask


class Generate(TensorTask):
    """One completion for each prompt."""

    fields: ClassVar[Mapping[str, str]] = {"text_input": "prompt", "input_ids": "prompt"}
    options: ClassVar[Sequence[str]] = (
        "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
        "frequency_penalty", "presence_penalty", "stop", "seed", "regex", "json_schema",
    )  # fmt: skip

    def __init__(self, served: ServedModel, task: CompleteTask, max_batch_size: int) -> None:
        self.schema = task.schema
        self._task = task
        input_spec = source(served.model, "text_input", "input_ids")
        self._texts = input_spec.datatype == BYTES
        output_spec = Spec("text_output", BYTES, (1,)) if self._texts else Spec(
            "output_ids", "INT64", (-1,)
        )  # fmt: skip
        outputs = (output_spec, Spec("finish_reason", BYTES, (1,)))
        self.signature = Signature((input_spec,), outputs, max_batch_size if self._texts else 0)

    async def run(
        self, caller: Caller, served: ServedModel, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        async with self._task.run(caller, request, served, cost) as completion:
            choices = await completion.choices()
            return self._outputs(choices), choices[0].get("state")

    def begin_step(self, request: Any, view: StreamView) -> None:
        view.set_seed(request)

    def _outputs(self, choices: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        reasons = [choice["finish_reason"] for choice in choices]
        if not self._texts:
            ids = choices[0]["token_ids"]
            return [
                number_tensor("output_ids", "INT64", (len(ids),), ids),
                text_tensor("finish_reason", (1,), reasons),
            ]
        shape = (len(choices), 1)
        return [
            text_tensor("text_output", shape, [choice["text"] for choice in choices]),
            text_tensor("finish_reason", shape, reasons),
        ]
