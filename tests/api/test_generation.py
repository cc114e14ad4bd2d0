"""Completions in this process: the server's text, in pieces, which a reader may leave."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_type_hints

import pytest

import sruserve
from sruserve.api.model import Model
from sruserve.api.options import InputOptions, PromptOptions, SamplingOptions
from sruserve.server.errors import EmptyInput, InvalidRequest, ModelClosed
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import ChunkRequest
from tests.api.conftest import KEY
from tests.server.conftest import Leftovers, Serve
from tests.server.observing import until

Load = Callable[..., Model]
LONG: dict[str, Any] = {"max_tokens": 1_000_000, "seed": 1}


@pytest.fixture
def letters(load: Load) -> Iterator[Model]:
    """A language model; a test leaves nothing of its completions."""
    model = load("characters")
    yield model
    wait_until_idle(model)


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What ends, ends without the garbage collector."""
    gc.disable()
    yield
    gc.enable()


def wait_until_idle(model: Model) -> None:
    """Wait until nothing runs: no job, no row of state, no request in flight."""
    served = model._local.with_states
    engine = served.engine
    until(lambda: not engine.running and not engine.rows and served.in_flight.idle)


def test_a_seed_gives_the_server_s_text_with_all_options(letters: Model, serve: Serve) -> None:
    options: list[dict[str, Any]] = [
        {"seed": 7, "max_tokens": 40},
        {"seed": 7, "max_tokens": 40, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"seed": 8, "max_tokens": 30, "logprobs": 3, "echo": True},
        {"seed": 9, "max_tokens": 60, "stop": ["e", "a"], "min_tokens": 3},
        {"seed": 3, "max_tokens": 9, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
        {"seed": 3, "max_tokens": 9, "allowed_token_ids": [40, 41, 42], "presence_penalty": 0.5},
        {"seed": 3, "max_tokens": 9, "logit_bias": {"40": 9.5}},
        {"seed": 9, "max_tokens": 60, "stop": ["qqqqqq"], "return_state": True},
        {"seed": 4, "max_tokens": 40, "regex": "[a-c]{9}"},
        {"seed": 4, "max_tokens": 90, "json_schema": {"enum": ["yes", "no"]}},
    ]
    with serve("characters") as (client, _):
        for each in options:
            body = {"prompt": "abc", "return_token_ids": True, **each}
            (choice,) = client.post("/v1/completions", json=body).json()["choices"]
            completion = letters.generate("abc", **each).read()
            assert completion.text == choice["text"], each
            assert list(completion.token_ids) == choice["token_ids"]
            assert completion.logprobs == choice["logprobs"]
            assert completion.finish_reason == choice["finish_reason"]
            assert completion.stop_reason == choice["stop_reason"]


def test_the_options_are_those_of_the_server_s_requests() -> None:
    ours = set(get_type_hints(PromptOptions))
    offered_elsewhere = {"model", "prompt", "n", "stream", "stream_options"}
    always_on = {"return_token_ids"}
    ignored = {"suffix", "best_of", "ignore_eos", "user", "metadata", "service_tier"}
    ignored |= {"safety_identifier"}
    assert ours == set(CompletionRequest.model_fields) - offered_elsewhere - always_on - ignored
    assert set(get_type_hints(InputOptions)) == set(ChunkRequest.model_fields) - {"model", "input"}
    for options in (SamplingOptions, InputOptions):
        documented = (options.__doc__ or "").replace(":", " ").replace(",", " ").split()
        assert set(get_type_hints(options)) - set(documented) <= {"max_tokens"}


def test_pieces_are_the_text_and_grow_it(letters: Model) -> None:
    generation = letters.generate("a", max_tokens=300, seed=2)
    seen = ""
    for piece in generation:
        seen += piece
        assert piece
        assert generation.text == seen
    assert generation.finish_reason == "length"
    assert len(generation.token_ids) == 300
    assert list(generation) == []
    assert "300 tokens, length" in repr(generation)


def test_a_state_continues_the_text_here_and_on_a_server(letters: Model, serve: Serve) -> None:
    whole = letters.generate("a", max_tokens=60, seed=5).read()
    begun = letters.generate("a", max_tokens=25, seed=5, return_state=True).read()
    rest = letters.generate(state=begun.state, max_tokens=35).read()
    assert begun.text + rest.text == whole.text
    with serve("characters", state_keys=KEY) as (client, _):
        body = {"state": begun.state, "max_tokens": 35, "return_state": True}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
        assert begun.text + choice["text"] == whole.text
        body = {"prompt": "a", "max_tokens": 25, "seed": 5, "return_state": True}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    rest = letters.generate(state=choice["state"], max_tokens=35).read()
    assert choice["text"] + rest.text == whole.text


def test_several_prompts_and_choices_are_those_of_one_request(letters: Model, serve: Serve) -> None:
    prompts = ["abc", "x"]
    generations = letters.generate(prompts, n=3, max_tokens=20, seed=7)
    with serve("characters") as (client, _):
        body = {"prompt": prompts, "n": 3, "max_tokens": 20, "seed": 7}
        choices = client.post("/v1/completions", json=body).json()["choices"]
    backwards = [generation.read().text for generation in reversed(generations)]
    assert backwards[::-1] == [choice["text"] for choice in choices]


def test_an_invalid_option_is_refused_at_the_call(letters: Model) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        letters.generate("a", temperature=11)
    with pytest.raises(InvalidRequest, match="did you mean 'top_k'"):
        letters.generate("a", topk=3)  # type: ignore[call-overload]
    with pytest.raises(EmptyInput):
        letters.generate("")
    with pytest.raises(EmptyInput):
        letters.generate([])


def test_a_closed_completion_leaves_nothing(letters: Model) -> None:
    generation = letters.generate("a", **LONG)
    text = next(generation)
    generation.close()
    assert generation.text == text
    assert list(generation) == []
    assert generation.finish_reason is None
    wait_until_idle(letters)


def test_no_object_of_a_completion_stays(letters: Model, leftovers: Leftovers) -> None:
    def use() -> None:
        letters.generate("a", max_tokens=20).read()
        for _ in letters.generate("a", **LONG):
            break
        with letters.generate("a", **LONG) as generation:
            next(generation)
        letters.stream().send("abc")

    use()
    wait_until_idle(letters)
    assert leftovers() == []


def test_leaving_a_loop_or_a_block_ends_the_completion(letters: Model, no_gc: None) -> None:
    del no_gc
    for _ in letters.generate("a", **LONG):
        break
    wait_until_idle(letters)
    with letters.generate("a", **LONG) as generation:
        next(generation)
    wait_until_idle(letters)


def test_one_of_several_choices_may_be_closed_alone(letters: Model) -> None:
    first, second = letters.generate("a", n=2, max_tokens=2000, seed=3)
    next(first)
    first.close()
    del first
    gc.collect()
    assert len(second.read().token_ids) == 2000
    first, second = letters.generate("a", n=2, **LONG)
    del first
    second.close()
    wait_until_idle(letters)
    left = letters.generate("a", n=2, **LONG)
    for generation in left:
        generation.close()
    wait_until_idle(letters)


def test_an_interrupt_ends_the_completion(letters: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = letters.generate("a", **LONG)
    run = letters._local.loop.run

    def interrupted(work: Any) -> Any:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(letters._local.loop, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    monkeypatch.setattr(letters._local.loop, "run", run)
    wait_until_idle(letters)
    assert list(generation) == []


def test_async_iteration_gives_the_same_pieces(letters: Model) -> None:
    async def read() -> str:
        return "".join([piece async for piece in letters.aio.generate("a", max_tokens=99, seed=4)])

    assert asyncio.run(read()) == letters.generate("a", max_tokens=99, seed=4).read().text


def test_a_cancelled_reader_ends_its_completion(letters: Model) -> None:
    async def leave() -> None:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in letters.aio.generate("a", **LONG):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    wait_until_idle(letters)


def test_an_async_block_ends_its_completion(letters: Model) -> None:
    async def leave() -> None:
        async with letters.aio.generate("a", **LONG) as generation:
            await anext(generation)
        assert [piece async for piece in generation] == []

    asyncio.run(leave())
    wait_until_idle(letters)


def test_sixteen_threads_write_what_one_writes(letters: Model) -> None:
    def write(seed: int) -> str:
        return letters.generate("a", max_tokens=50, seed=seed).read().text

    alone = [write(seed) for seed in range(48)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(write, range(48))) == alone


def test_closing_the_model_ends_open_completions_with_their_state_or_fails_them(load: Load) -> None:
    path = load("characters")._local.with_states.model.path
    model = sruserve.load(path, device="cpu")
    generation = model.generate("a", return_state=True, **LONG)
    other = model.generate("a", **LONG)
    next(generation), next(other)
    model.close()
    with pytest.raises(ModelClosed):
        other.read()
    completion = generation.read()
    assert completion.finish_reason == "length"
    assert completion.stop_reason == "draining"
    assert completion.state is not None
    with pytest.raises(ModelClosed):
        model.generate("a")
