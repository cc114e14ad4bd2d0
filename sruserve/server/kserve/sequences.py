"""Triton's sequences. Each is a server-held stream, and each of its requests is a step."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from sruserve.server.auth import Tenant
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    InvalidRequest,
    ServeError,
    StateRefused,
    StepReused,
    StreamExists,
    StreamExpired,
    StreamUnknown,
    WrongStep,
)
from sruserve.server.kserve.choosing import reply_numbers
from sruserve.server.kserve.infer_body import pack_request, pack_response, unpack_response
from sruserve.server.kserve.messages import InferRequest, InferResponse
from sruserve.server.kserve.parameters import Sequence
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step import Begin, Counted, digest_of
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import Caller, StepCaller
from sruserve.server.tasks.inputs import opens_long
from sruserve.server.tasks.limits import NUMBER_BYTES, InputLimits
from sruserve.server.tasks.requests import Request

Work = Callable[[Caller, StreamView], Awaitable[InferResponse]]


class Sequences:
    """The sequences of all models."""

    def __init__(self, streams: Streams, limits: InputLimits) -> None:
        self._streams, self._limits = streams, limits

    async def weights(self, tenant: Tenant, model: str, sequence: Sequence) -> str:
        """The weights of a sequence of a model; empty: unknown."""
        try:
            _, weights = await self._streams.model(tenant, _stream_id(model, sequence))
        except ServeError:  # which its step reports
            return ""
        return weights

    async def infer(
        self,
        caller: Caller,
        served: ServedModel,
        request: InferRequest,
        sequence: Sequence,
        body: Request,
        cost: int,
        work: Work,
    ) -> InferResponse:
        """The response to a request of a sequence. `work` computes it on a view of the model.

        body: the same request under `/v1`, which may have the start state.
        cost: bytes of the request.
        """
        content = await offload(cost > LONG_BYTES, pack_request, request, cost=cost, caller=caller)
        digest = await digest_of(content, caller)
        del content
        request.drop_read_fields()

        step_caller = StepCaller(caller)

        async def respond(view: StreamView) -> bytes:
            response = await work(step_caller, view)
            size = NUMBER_BYTES * reply_numbers(response.outputs, request.outputs)
            return await offload(size > LONG_BYTES, pack_response, response, cost=size)

        counted = partial(step_caller.counted, self._limits, cost)
        step = _Step(self._streams, served, digest, sequence, respond, counted)
        answer = step.start(body) if sequence.start else step.continue_stream()
        with step_caller:
            outcome = caller.loop.create_task(answer)
            await caller.wait(outcome)
            packed = outcome.result()
            with self._limits.count_reply(0 if step_caller.counts else len(packed) // NUMBER_BYTES):
                size = len(packed)
                response = await offload(size > LONG_BYTES, unpack_response, packed, cost=size)
                return replace(response, id=request.id)


def _stream_id(model: str, sequence: Sequence) -> str:
    return f"kserve:{model}:{sequence.id}"


def check_step(model: str, body: Request, sequence: Sequence, batch: int) -> None:
    """Raise if a request cannot be part of a sequence."""
    if batch > 1:
        raise InvalidRequest(
            f"inference request to model '{model}' must specify batch-size 1 due to requirements "
            "of sequence batcher",
            param="inputs",
        )
    if body.return_state:
        raise InvalidRequest(
            "the server keeps the state of a sequence: leave out 'sru_return_state'",
            param="sru_return_state",
        )
    if body.begun_by is not None and not sequence.start:
        raise InvalidRequest(
            f"a sequence continues from its own state: leave out 'sru_{body.begun_by}', or send "
            "it with 'sequence_start'",
            param=f"sru_{body.begun_by}",
        )


class _Step:
    """One request of one sequence."""

    def __init__(
        self,
        streams: Streams,
        served: ServedModel,
        digest: bytes,
        sequence: Sequence,
        work: Callable[[StreamView], Awaitable[bytes]],
        counted: Counted = nullcontext,
    ) -> None:
        self._streams, self._served, self._sequence = streams, served, sequence
        self._id = _stream_id(served.name, sequence)
        self._digest, self._work, self._counted = digest, work, counted
        self._worked = False

    async def start(self, body: Request) -> bytes:
        """The reply to the first step of a stream; a retry with a number gets the stored reply.

        The stream is new, or an earlier start has left it without a step.
        """
        if isinstance(body.state, list):
            raise InvalidRequest("'sru_state' must be one state", param="sru_state")
        begin = partial(self._begin, body)
        if self._sequence.step is not None:
            if self._sequence.step != 1:
                raise InvalidRequest(
                    "the first request of a sequence must have 'sru_step' 1", param="sru_step"
                )
            try:
                return await self._step(begin)
            except (StreamUnknown, StreamExpired, StateRefused, WrongStep, StepReused):
                if self._worked:  # its start state was read and dropped
                    raise
                # the stream may have ended, or its state may be unreadable
        start = await begin()
        try:
            new = await self._streams.create(self._served, start, self._id)
        except StreamExists:
            if not await self._streams.forget_lost(self._served, self._id):
                return await self._first(begin)
            new = await self._streams.create(self._served, start, self._id)
        try:
            return await self._first(begin)
        except ServeError:
            await asyncio.shield(self._streams.forget_unused(new))  # so that a retry can start it
            raise
        except BaseException:  # the client has left, maybe before the step
            self._streams.forget_unused(new)
            raise

    async def continue_stream(self) -> bytes:
        """The reply to the next step of a stream, or the stored reply of its last one."""
        try:
            return await self._step()
        except StreamUnknown:
            raise InvalidRequest(
                f"inference request for sequence {self._sequence.id} to model "
                f"'{self._served.name}' must specify the START flag on the first request of the "
                "sequence",
                param="sequence_id",
            ) from None

    async def _first(self, begin: Begin) -> bytes:
        try:
            return await self._step(begin)
        except WrongStep:
            if self._sequence.step is not None:
                raise
            raise InvalidRequest(
                f"sequence {self._sequence.id} of model '{self._served.name}' has already started: "
                "end it with 'sequence_end', choose another 'sequence_id', or number its requests "
                "with 'sru_step' to allow retries",
                param="sequence_start",
            ) from None

    async def _begin(self, body: Request) -> Snapshot | None:
        """The start state of a sequence."""
        assert not isinstance(body.state, list)
        long, arguments = opens_long(body.state), (body.state, body.preset)
        return await offload(long, self._served.initial_state, *arguments)

    async def _step(self, begin: Begin | None = None) -> bytes:
        sequence = self._sequence
        return await self._streams.step(
            self._served,
            self._id,
            sequence.step,
            self._digest,
            self._work_once,
            last=sequence.end,
            checkpoints=1,  # sequences do not rewind
            begin=begin,
            counted=self._counted,
        )

    async def _work_once(self, view: StreamView) -> bytes:
        self._worked = True
        return await self._work(view)
