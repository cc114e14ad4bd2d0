"""Completions through tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic_core import from_json

from sruserve.server.api.call import Call, Caller
from sruserve.server.api.completions import CompletionRoute
from sruserve.server.api.kserve.datatypes import BYTES, number_tensor, text_tensor
from sruserve.server.api.kserve.messages import Tensor
from sruserve.server.api.kserve.signature import Signature, Spec
from sruserve.server.api.kserve.sources import source
from sruserve.server.api.kserve.tasks import Task
from sruserve.server.api.limits import InputLimits
from sruserve.server.api.served import Served
from sruserve.server.offload import LONG_BYTES, off_loop
from sruserve.server.streams.view import StreamView


class KeptReply(Call):
    """A call whose reply is kept for another protocol instead of sent."""

    __slots__ = ("_caller", "body_kept")

    def __init__(self, caller: Caller) -> None:
        super().__init__({"headers": []}, _nothing, _nowhere)
        self.number = caller.number
        self._caller = caller
        self.body_kept = b""

    async def wait(self, done: Any) -> None:
        await self._caller.wait(done)

    def count_more(self, limits: InputLimits, size: int) -> None:
        self._caller.count_more(limits, size)

    def submitted(self) -> None:
        self._caller.submitted()

    async def reply(self, body: bytes) -> None:
        self.body_kept = body


class Generate(Task):
    """One completion for each prompt."""

    fields: ClassVar[Mapping[str, str]] = {"text_input": "prompt", "input_ids": "prompt"}
    options: ClassVar[Sequence[str]] = (
        "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
        "frequency_penalty", "presence_penalty", "stop", "seed", "regex", "json_schema",
    )  # fmt: skip

    def __init__(self, served: Served, route: CompletionRoute, most: int) -> None:
        self.schema = route.schema
        self._route = route
        reads = source(served.model, "text_input", "input_ids")
        self._texts = reads.datatype == BYTES
        gives = Spec("text_output", BYTES, (1,)) if self._texts else Spec(
            "output_ids", "INT64", (-1,)
        )  # fmt: skip
        outputs = (gives, Spec("finish_reason", BYTES, (1,)))
        self.signature = Signature((reads,), outputs, most if self._texts else 0)

    async def run(
        self, caller: Caller, served: Served, request: Any, cost: int
    ) -> tuple[list[Tensor], str | None]:
        kept = KeptReply(caller)
        await self._route.answer(kept, request, served, cost)
        body = kept.body_kept
        long = len(body) > LONG_BYTES
        reply = await off_loop(long, from_json, body, cost=len(body), caller=caller)
        choices = reply["choices"]
        return self._outputs(choices), choices[0].get("state")

    def begin_step(self, request: Any, view: StreamView) -> None:
        view.set_seed(request)

    def _outputs(self, choices: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        reasons = [each["finish_reason"] for each in choices]
        if not self._texts:
            ids = choices[0]["token_ids"]
            return [
                number_tensor("output_ids", "INT64", (len(ids),), ids),
                text_tensor("finish_reason", (1,), reasons),
            ]
        shape = (len(choices), 1)
        return [
            text_tensor("text_output", shape, [each["text"] for each in choices]),
            text_tensor("finish_reason", shape, reasons),
        ]


async def _nothing() -> dict[str, Any]:
    raise AssertionError("a kept reply reads nothing")


async def _nowhere(message: Any) -> None:
    raise AssertionError(f"a kept reply sends nothing: {message['type']}")
