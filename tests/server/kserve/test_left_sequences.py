"""A client that leaves while its sequence starts: there is a first step, or no sequence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sruserve.server.errors import InvalidRequest, StoreUnavailable, StreamUnknown
from sruserve.server.http.call import HttpCall
from sruserve.server.kserve import sequences
from sruserve.server.kserve.messages import InferRequest, InferResponse
from sruserve.server.kserve.parameters import Sequence
from sruserve.server.kserve.sequences import Sequences, _Step
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.limits import InputLimits
from tests.server.streams.conftest import redis_port, run, start_redis  # noqa: F401
from tests.server.streams.work import Run, settled, write

Work = Callable[[StreamView], Awaitable[bytes]]
ID = "kserve:characters:7"


async def nothing(*_: Any) -> Any:
    raise AssertionError("nobody asks")


def starting(
    streams: Streams,
    served: ServedModel,
    work: Work = write,
    number: int | None = None,
    content: bytes = b"a",
) -> asyncio.Task[bytes]:
    """The start of a sequence."""
    step = _Step(streams, served, content, Sequence("7", start=True, end=False, step=number), work)
    return asyncio.create_task(step.start(CompletionRequest(model="characters", prompt="a")))


@pytest.mark.parametrize("moment", ["add", "step"])
def test_a_start_that_its_client_leaves_before_its_step_leaves_no_sequence(
    run: Run,  # noqa: F811
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, there = catalogue.with_states("characters"), asyncio.Event()
        add = streams._store.add

        async def adds_and_stalls(*args: Any) -> None:
            await add(*args)
            there.set()
            await asyncio.Event().wait()

        async def stalls(*_: Any, **__: Any) -> None:
            there.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            if moment == "add":
                patch.setattr(streams._store, "add", adds_and_stalls)
            else:
                patch.setattr(streams, "step", stalls)
            start = starting(streams, served)
            await there.wait()
            assert (await streams.describe(served.tenant, ID)).step == 0
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        await settled(streams)
        with pytest.raises(StreamUnknown):
            await streams.describe(served.tenant, ID)
        await starting(streams, served)
        await streams.delete(served.tenant, ID)

    run(test)


def test_a_first_step_that_has_begun_counts_without_its_client(run: Run) -> None:  # noqa: F811
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, begun, goes_on = (
            catalogue.with_states("characters"),
            asyncio.Event(),
            asyncio.Event(),
        )

        async def slow(view: StreamView) -> bytes:
            begun.set()
            await goes_on.wait()
            return await write(view)

        start = starting(streams, served, slow)
        await begun.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        goes_on.set()
        await settled(streams)
        assert (await streams.describe(served.tenant, ID)).step == 1
        await streams.delete(served.tenant, ID)

    run(test)


@pytest.mark.parametrize("number", [None, 1])
@pytest.mark.parametrize("fails", ["add", "take"])
def test_a_sequence_whose_start_the_store_left_half_done_starts_again(
    run: Run,  # noqa: F811
    number: int | None,
    fails: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, there = catalogue.with_states("characters"), False
        add, take = streams._store.add, streams._store.take

        async def adds(*args: Any) -> Any:
            nonlocal there
            added, there = await add(*args), True
            if fails == "add":
                raise StoreUnavailable
            return added

        async def takes(*args: Any, **more: Any) -> Any:
            if there:
                raise StoreUnavailable
            return await take(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(streams._store, "add", adds)
            patch.setattr(streams._store, "take", takes)
            with pytest.raises(StoreUnavailable):
                await starting(streams, served, number=number)
        assert (await streams.describe(served.tenant, ID)).step == 0
        again = await starting(streams, served, number=number)
        await streams.delete(served.tenant, ID)
        assert again == await starting(streams, served, number=number)
        await streams.delete(served.tenant, ID)

    run(test)


@pytest.mark.parametrize("number", [None, 1])
def test_a_start_continues_from_its_own_state_whatever_another_start_has_left(
    run: Run,  # noqa: F811
    number: int | None,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        expected = await starting(streams, served)
        _, token = await streams.token(served, ID)
        await streams.delete(served.tenant, ID)
        assert token is not None
        await streams.create(served, served.open_state(token), ID)
        assert await starting(streams, served, number=number) == expected
        assert (await streams.describe(served.tenant, ID)).step == 1
        await streams.delete(served.tenant, ID)

    run(test)


@pytest.mark.parametrize("number", [None, 1])
@pytest.mark.parametrize("contents", [b"ab", b"aa"])
def test_of_two_starts_at_once_one_makes_the_step(
    run: Run,  # noqa: F811
    number: int | None,
    contents: bytes,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, done = catalogue.with_states("characters"), 0

        async def counted(view: StreamView) -> bytes:
            nonlocal done
            done += 1
            return await write(view)

        both = [starting(streams, served, counted, number, bytes([each])) for each in contents]
        replies = await asyncio.gather(*both, return_exceptions=True)
        assert done == 1
        refused = [each for each in replies if isinstance(each, InvalidRequest)]
        assert len(refused) == (0 if number and contents == b"aa" else 1)
        assert len({each for each in replies if isinstance(each, bytes)}) == 1
        assert (await streams.describe(served.tenant, ID)).step == 1
        await streams.delete(served.tenant, ID)

    run(test)


def test_a_stored_response_counts_while_it_is_read(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = InputLimits(1, 1, 1, 1, 1, 10_000, 1, 1)
    counted: list[int] = []

    def unpack(packed: bytes) -> InferResponse:
        counted.append(limits.replies.used)
        return InferResponse("characters", "1", "", [], {})

    async def stored(*_: Any) -> bytes:
        return b"a" * 8 * 9000

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        caller: Any = HttpCall({"headers": []}, nothing, nothing)
        sequence = Sequence("7", start=False, end=False, step=1)
        infer_request = InferRequest("characters", "", "a", [], [], {})
        body = CompletionRequest(model="characters", prompt="a")
        with monkeypatch.context() as patch:
            patch.setattr(sequences, "unpack_response", unpack)
            patch.setattr(_Step, "continue_stream", stored)
            served, ask = catalogue.with_states("characters"), Sequences(streams, limits).infer
            await ask(caller, served, infer_request, sequence, body, 1, nothing)
        assert (counted, limits.replies.used) == ([9000], 0)

    run(test)
