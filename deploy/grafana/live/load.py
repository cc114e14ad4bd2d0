"""Traffic of every kind that the dashboards show, for two of the bundled models."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from websockets.sync.client import connect

CLASSIFIER, WRITER = "question-type", "shakespeare"
QUESTION = "How far is it from Denver to Aspen?"
BURST = 200  # requests at a time, of which a server with a short queue refuses some

Work = Callable[[httpx.Client], None]


def classify(client: httpx.Client) -> None:
    """Questions alone and several at a time, and one that is no question."""
    for text in (QUESTION, [QUESTION] * 16, "Who wrote Hamlet? " * 30):
        _post(client, "/v1/classify", model=CLASSIFIER, input=text)
    _post(client, "/v1/classify", model=CLASSIFIER, input="")


def complete(client: httpx.Client) -> None:
    """A streamed completion, one that ends with its line, and one whose client leaves."""
    body = {"model": WRITER, "prompt": "To be", "max_tokens": 300, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.read()
    short = {"stop": ["\n"], "return_state": True, "n": 4, "max_tokens": 100}
    _post(client, "/v1/completions", model=WRITER, prompt="ROMEO:\n", **short)
    with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 5000}) as reply:
        next(reply.iter_lines())


def continue_states(client: httpx.Client) -> None:
    """States that come back: as they were, cut, and to another model."""
    first = _post(client, "/v1/classify", model=CLASSIFIER, input="How far", more=True)
    if first.is_success:
        state = first.json()["results"][0]["state"]
        _post(client, "/v1/classify", model=CLASSIFIER, input=" is it?", state=state)
        _post(client, "/v1/classify", model=CLASSIFIER, input=" is it?", state=state[:-4])
        _post(client, "/v1/completions", model=WRITER, prompt="a", state=state)


def hold_stream(client: httpx.Client) -> None:
    """A server-held stream: steps, one of them sent twice."""
    created = _post(client, "/v1/streams", model=CLASSIFIER)
    if not created.is_success:
        return
    path = f"/v1/streams/{created.json()['id']}"
    for step in (1, 2, 3, 3):
        _post(client, f"{path}/steps", step=step, input="How far ", more=True)
    client.delete(path)


def crowd(client: httpx.Client) -> None:
    """Many requests at a time."""
    body = json.dumps({"model": CLASSIFIER, "input": [QUESTION] * 32})
    threads = [
        threading.Thread(target=client.post, args=("/v1/classify",), kwargs={"content": body})
        for _ in range(BURST)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leave_streams(client: httpx.Client) -> None:
    """Server-held streams that are never deleted."""
    for text in (QUESTION, "Who wrote Hamlet?"):
        created = _post(client, "/v1/streams", model=CLASSIFIER)
        if created.is_success:
            _post(client, f"/v1/streams/{created.json()['id']}/steps", step=1, input=text)


KINDS: tuple[Work, ...] = (classify, complete, continue_states, hold_stream)


@contextmanager
def traffic(
    address: str, pause: Callable[[], float], kinds: Sequence[Work] = KINDS
) -> Iterator[None]:
    """Clients of each kind until the block ends, and an open WebSocket.

    pause: seconds before a client's next round.
    """
    over = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(address, work, pause, over)) for work in kinds
    ]
    with connect(address.replace("http", "ws", 1) + "/v1/stream"):
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def client_of(address: str) -> httpx.Client:
    """A client with as many connections as it needs."""
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=address, timeout=60, limits=limits, trust_env=False)


def _repeat(address: str, work: Work, pause: Callable[[], float], over: threading.Event) -> None:
    with client_of(address) as client:
        while not over.wait(pause()):
            work(client)


def _post(client: httpx.Client, path: str, **body: Any) -> httpx.Response:
    return client.post(path, json=body)
