"""Compute the steps of server-held streams, each exactly once."""

from collections.abc import Callable

from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import InputTooLong, StateWrongModel, StreamUnknown
from sruserve.server.metrics.metrics import stream_metrics
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.lease import Lease, LeaseManager
from sruserve.server.streams.record import StreamRecord, alive
from sruserve.server.streams.step import Step, is_repeat
from sruserve.server.streams.step_view import StreamView
from sruserve.server.streams.store import StreamStore, lease_lost


class StepRunner:
    """Answers steps, each from its stream's stored reply or by computing it.

    reply_bytes: the longest reply of a step.
    epoch: seconds since 1970, on the clock of the store.
    """

    def __init__(self, leases: LeaseManager, reply_bytes: int, epoch: Callable[[], float]) -> None:
        self._leases, self._reply_bytes, self._epoch = leases, reply_bytes, epoch

    async def answer(
        self, store: StreamStore, lease: Lease, served: ServedModel, step: Step
    ) -> bytes:
        """Return the stored reply, or compute and commit a step.

        If another replica takes the stream meanwhile, take it again to see whether that replica
        has committed this step.
        """
        with served.in_flight:  # to the step's end, even without its caller
            async with lease as record:
                with step.counted():
                    if is_repeat(record, step):
                        return await _repeated(store, record)
                    if alive(record).model != served.name:
                        raise StreamUnknown(
                            f"this stream belongs to {record.model}, not to {served.name}: "
                            "send its steps to that model"
                        )
                    if record.weights and record.weights != served.states.weights:
                        raise _wrong_version(served)
                    reply = await self._compute(store, served, record, step)
            if reply is not None:
                return reply
            async with await self._leases.take(store, served.tenant, record.id) as record:
                if is_repeat(record, step):
                    return await _repeated(store, record)
            raise lease_lost()

    async def _compute(
        self, store: StreamStore, served: ServedModel, record: StreamRecord, step: Step
    ) -> bytes | None:
        """Compute and commit the next step of a taken stream, and return its reply.

        None: not committed, because another replica has taken the stream.
        """
        idle_seconds = max(0.0, self._epoch() - (record.expires_at - record.idle_seconds))
        state_output = StateOutput.NONE if step.last else store.state_output
        checkpoints = step.checkpoints
        if not step.last:  # an ended stream needs no room
            checkpoints = store.make_room(served, record, checkpoints)
        start = await (step.begin() if step.begin else store.state(served, record))
        with StreamView(served, start, state_output, seed=record.seed) as view:
            reply = await step.work(view)
            if len(reply) > self._reply_bytes:
                raise InputTooLong(
                    f"the reply has {len(reply)} bytes, and a stream stores at most "
                    f"{self._reply_bytes} (SRUSERVE_MAX_BODY_BYTES): request less in one step"
                )
            end = None if step.last else view.end
            if step.last and step.number is None:
                await store.delete(record)
            else:
                after = record.after(step.digest, reply, checkpoints, ended=step.last)
                if await store.commit(served, after, end) is None:
                    return None
        stream_metrics(record.model).computed(idle_seconds)
        return reply


async def _repeated(store: StreamStore, record: StreamRecord) -> bytes:
    reply = await store.reply(record)
    stream_metrics(record.model).repeated()
    return reply


def _wrong_version(served: ServedModel) -> StateWrongModel:
    return StateWrongModel(
        f"the stream belongs to another version of {served.name} than {served.version}: if the "
        "request names a version, leave it out; otherwise that version is no longer served, so "
        "create another stream"
    )
