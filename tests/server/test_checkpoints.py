"""Streams that tell their state on the way: whoever is cut off goes on from the last one."""

import asyncio
from itertools import accumulate, pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from sruserve.server.budget import Budget
from sruserve.server.engine.results import Generated
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import Overloaded
from sruserve.server.tasks.chunks import ChunkBuffer, Room
from tests.server.test_completions import PROMPT, choice, events

STATE = Snapshot(np.zeros(3, np.float32))


def read(
    client: httpx.Client, interval: int, index: int = 0, **body: Any
) -> tuple[str, list[tuple[int, str]]]:
    """The text of a choice, and its states with how many characters came before each."""
    text, states = "", []
    for event in events(client, stream_options={"state_interval": interval}, **body):
        for part in event["choices"]:
            if part["index"] == index:
                text += part["text"]
                if part.get("state"):
                    states.append((len(text), part["state"]))
    return text, states


def rest_of(client: httpx.Client, state: str, **body: Any) -> str:
    rest: str = choice(client, prompt="", state=state, seed=None, **body)["text"]
    return rest


@pytest.mark.parametrize("interval", [1, 7, 50, 10**6])
@pytest.mark.parametrize("seed", [3, 4])
def test_a_text_continues_from_every_state_as_if_it_was_never_cut(
    client: httpx.Client, interval: int, seed: int
) -> None:
    text, states = read(client, interval, prompt=PROMPT, max_tokens=80, seed=seed)
    whole = choice(client, prompt=PROMPT, max_tokens=100, seed=seed)["text"]
    assert whole.startswith(text)
    places = [place for place, _ in states]
    assert places[-1] == len(text)
    assert all(b - a >= interval for a, b in pairwise([0, *places[:-1]]))
    assert (len(states) > 1) == (interval < len(text))
    for place, state in states[:: max(1, len(states) // 5)]:
        rest = rest_of(client, state, max_tokens=100)
        assert whole[place:] == rest[: len(whole) - place]


def test_a_state_comes_at_least_that_often(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may write several tokens, and the text of a token may have to wait for a stop.

    Seen before the buffer, which drops older states for a client that reads slowly.
    """
    put, pieces = ChunkBuffer.put, list[Generated]()

    def see(buffer: ChunkBuffer[Generated], index: int, piece: Generated) -> None:
        pieces.append(piece)
        put(buffer, index, piece)

    monkeypatch.setattr(ChunkBuffer, "put", see)
    text, _ = read(client, 20, prompt=PROMPT, max_tokens=300)
    ends = [*accumulate(len(piece.text) for piece in pieces)]
    places = [end for end, piece in zip(ends, pieces, strict=True) if piece.state is not None]
    assert ends[-1] == len(text)
    assert max(b - a for a, b in pairwise([0, *places, len(text)])) <= 40


def test_text_that_a_stop_string_may_begin_with_is_not_lost(client: httpx.Client) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 120}
    whole = choice(client, **body)["text"]
    stop = [whole[i] + "never to be found" for i in range(20, 30)] + [whole[100:103]]
    text, states = read(client, 3, stop=stop, **body)
    assert text == whole[: whole.index(whole[100:103])]
    for place, state in states[:-1:9]:
        assert text[place:] == rest_of(client, state, stop=stop, max_tokens=120)


def test_every_choice_has_states_of_its_own(client: httpx.Client) -> None:
    four = [
        read(client, 15, index, prompt=PROMPT, n=4, max_tokens=60, seed=9) for index in range(4)
    ]
    assert len({text for text, _ in four}) == 4
    for text, states in four:
        assert len(states) > 1
        place, state = states[1]
        assert rest_of(client, state, max_tokens=60).startswith(text[place:])


def test_ids_count_where_there_are_no_characters(client: httpx.Client) -> None:
    body: dict[str, Any] = {"model": "ids", "prompt": [1, 2], "max_tokens": 40}
    whole = choice(client, **body)["token_ids"]
    token_ids: list[int] = []
    seen = 0
    for event in events(client, stream_options={"state_interval": 10}, **body):
        part = event["choices"][0]
        token_ids += part["token_ids"]
        if part.get("state") and part["finish_reason"] is None:
            seen += 1
            more = {"prompt": [[]], "seed": None, "state": part["state"]}
            rest = choice(client, **body | more)["token_ids"]
            assert (token_ids + rest)[:40] == whole
    assert token_ids == whole
    assert seen >= 2


@pytest.mark.parametrize("max_waiting", [1, 3])
def test_of_a_client_that_reads_nothing_the_last_states_wait_only(max_waiting: int) -> None:
    async def taken() -> list[tuple[int, Generated]]:
        done = asyncio.get_running_loop().create_future()
        room = Room(Budget(100, Overloaded).hold(), free=100, numbers_per_token=1, limit=100)
        buffer = ChunkBuffer(done, max_waiting, room)
        for number in range(10):
            for index in range(2):
                text = f"{number}"
                buffer.put(index, Generated(text, [], state=STATE if number % 2 else None))
        return await buffer.take(1)

    pieces = asyncio.run(taken())
    for index in range(2):
        mine = [piece for i, piece in pieces if i == index]
        assert [piece.text for piece in mine] == list("0123456789")
        with_state = [piece.text for piece in mine if piece.state is not None]
        assert with_state == ["1", "3", "5", "7", "9"][-max_waiting:]
