"""The layer below the API: validated requests in, the server's results out."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sruserve.api.local_model import LocalModel, make_request
from sruserve.api.local_settings import find_folder, local_settings
from sruserve.server.errors import InvalidRequest, ModelClosed, ModelLoadFailed, ModelNotFound
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import ClassifyRequest
from tests.server.conftest import TEXT, Serve

Local = Callable[[str], LocalModel]


def test_a_request_has_the_results_that_the_server_gives(local: Local, serve: Serve) -> None:
    model = local("question")
    request = make_request(ClassifyRequest, input=[TEXT, "who", "what where"])
    results = model.loop.run(model.answer(request))
    with serve("question") as (client, _):
        body = {"input": [TEXT, "who", "what where"]}
        assert results == client.post("/v1/classify", json=body).json()["results"]


def test_requests_beyond_the_places_of_a_model_wait_instead_of_being_refused(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUSERVE_MAX_QUEUE_REQUESTS", "64")
    model = LocalModel.load(local_settings(folders / "question", device="cpu"))

    async def many() -> list[int]:
        requests = [make_request(ClassifyRequest, input=[TEXT] * 3) for _ in range(500)]
        return [len(each) for each in await asyncio.gather(*map(model.answer, requests))]

    assert model.loop.run(many()) == [3] * 500
    model.loop.run(model.stop())


def test_an_invalid_field_is_the_server_s_error(local: Local) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'input'"):
        make_request(ClassifyRequest, inptu="a")


def test_a_cancelled_completion_leaves_no_row_and_no_task(local: Local) -> None:
    model = local("characters")
    engine = model.with_states.engine

    async def begin_and_leave() -> None:
        request = make_request(CompletionRequest, prompt="a", max_tokens=1_000_000, stream=True)
        begun = asyncio.Event()

        async def read() -> None:
            async with model.complete(request) as (caller, completion):
                caller.watch(completion.done)
                while await completion.next_chunks(1.0) is not None:
                    begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        assert engine.running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.running or engine.rows:
            await asyncio.sleep(0.01)

    model.loop.run(begin_and_leave())
    assert model.served.in_flight.idle


def test_a_stopped_model_finishes_running_jobs_and_refuses_new_ones(folders: Path) -> None:
    model = LocalModel.load(local_settings(folders / "question", device="cpu"))

    async def stop() -> list[int]:
        requests = [make_request(ClassifyRequest, input=[TEXT] * 3) for _ in range(500)]
        running = [asyncio.create_task(model.answer(request)) for request in requests]
        await asyncio.sleep(0)
        await model.stop(60)
        with pytest.raises(ModelClosed):
            await model.answer(requests[0])
        return [len(await each) for each in running]

    assert model.loop.run(stop()) == [3] * 500
    assert model.closed
    assert model.with_states.engine.ended


def test_a_name_is_a_folder_or_a_bundled_model(folders: Path) -> None:
    assert find_folder(folders / "question") == (folders / "question").resolve()
    assert find_folder("shakespeare").name == "shakespeare"
    with pytest.raises(ModelNotFound, match=r"'shakspeare' is no model folder.*question-type"):
        find_folder("shakspeare")
    with pytest.raises(ModelNotFound, match="is a folder without a model"):
        find_folder(folders)


def test_a_folder_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadFailed, match=r"config\.json"):
        LocalModel.load(local_settings(find_folder(tmp_path)))


@pytest.mark.parametrize(
    ("argument", "value"), [("device", "tpu"), ("dtype", "int3"), ("state_keys", "short")]
)
def test_an_invalid_argument_is_named(folders: Path, argument: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        local_settings(folders / "question", **{argument: value})
    assert caught.value.param == argument


def test_an_environment_for_a_server_does_not_disturb(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUSERVE_WORKERS", "4")
    monkeypatch.setenv("SRUSERVE_API_KEYS", "alice:0123456789abcdef")
    monkeypatch.setenv("SRUSERVE_DTYPE", '{"elsewhere": "bfloat16"}')
    monkeypatch.setenv("SRUSERVE_MAX_INPUTS", "7")
    settings = local_settings(folders / "question")
    assert (settings.workers, settings.api_keys, settings.dtype) == (1, None, None)
    assert settings.max_inputs == 7
