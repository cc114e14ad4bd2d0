"""Models of every family in one server at once, each continuing its streams by token."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sruserve.model.cells import FAMILIES
from tests.server.conftest import CHARACTERS, LABELS, LETTERS, Serve
from tests.server.posting import refusal
from tests.support import save_random_model

TEXT = "To be, or nöt to be — that is the question"
ROWS = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(90)]
NEEDED: dict[str, dict[str, Any]] = {"srupp": {"proj_size": 12, "num_heads": 2, "window": 8}}


@pytest.fixture(scope="module")
def families(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with a model of each family for each of four tasks, such as `sru-tag`."""
    parent = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        more: dict[str, Any] = {"model_type": family, **NEEDED.get(family, {})}
        save_random_model(parent / f"{family}-generate", vocabulary=CHARACTERS, **more)
        save_random_model(
            parent / f"{family}-tag", "tag", labels=LETTERS, vocabulary=CHARACTERS, **more
        )
        save_random_model(parent / f"{family}-classify", "classify", labels=LABELS, input_size=8,
                          **more)  # fmt: skip
        save_random_model(parent / f"{family}-encode", "encode", input_size=8, **more)
    with serve(models=parent, model_folders=(), max_batch_tokens=64) as (client, _):
        yield client


def ask(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    results: list[dict[str, Any]] = answer.get("results") or answer["choices"]
    return results[0]


def tag(client: httpx.Client, family: str, pieces: int) -> list[Any]:
    """The labels of the text's characters, read in so many pieces."""
    state, labels = None, []
    size = -(-len(TEXT) // pieces)
    for begin in range(0, len(TEXT), size):
        part = TEXT[begin : begin + size]
        reply = ask(client, "/v1/tag", model=f"{family}-tag", input=part, state=state, more=True)
        labels += [(token["label"], token["score"]) for token in reply["tokens"]]
        state = reply["state"]
    return labels


def generate(client: httpx.Client, family: str, pieces: int) -> str:
    """24 tokens of a completion, in so many pieces."""
    state, text = None, ""
    for _ in range(pieces):
        body = {"prompt": "" if state else TEXT, "max_tokens": 24 // pieces, "seed": 7}
        if state:
            body |= {"state": state}
        reply = ask(
            client, "/v1/completions", model=f"{family}-generate", return_state=True, **body
        )
        text, state = text + reply["text"], reply["state"]
    return text


def read(client: httpx.Client, family: str, pieces: int) -> list[Any]:
    """The outputs of features, and what they are classified as, read in so many pieces."""
    states: list[Any] = [None, None]
    outputs: list[Any] = []
    size = len(ROWS) // pieces
    for begin in range(0, len(ROWS), size):
        body: dict[str, Any] = {"features": ROWS[begin : begin + size], "more": True}
        encoded = ask(client, "/v1/encode", model=f"{family}-encode", state=states[0], **body)
        labelled = ask(client, "/v1/classify", model=f"{family}-classify", state=states[1], **body)
        states = [encoded["state"], labelled["state"]]
        outputs += encoded["outputs"]
    return [outputs, labelled["scores"]]


def test_streams_of_all_families_continue_by_token_side_by_side(families: httpx.Client) -> None:
    jobs = [(work, family) for work in (tag, generate, read) for family in FAMILIES]
    whole = [work(families, family, 1) for work, family in jobs]

    def in_pieces(job: Any) -> Any:
        with httpx.Client(base_url=families.base_url, timeout=60) as own:
            return job[0](own, job[1], 6)

    with ThreadPoolExecutor(len(jobs)) as pool:
        assert list(pool.map(in_pieces, jobs)) == whole


def test_a_state_of_one_family_is_refused_by_another(families: httpx.Client) -> None:
    states = {
        family: ask(families, "/v1/tag", model=f"{family}-tag", input="To", return_state=True)
        for family in FAMILIES
    }
    for one, result in states.items():
        for other in FAMILIES:
            body = {"model": f"{other}-tag", "input": " be", "state": result["state"]}
            reply = families.post("/v1/tag", json=body)
            if one == other:
                assert reply.status_code == 200, reply.text
            else:
                refusal(reply, 422, "state_wrong_model", "state")
