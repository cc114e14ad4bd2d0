"""Triton's sequences: held by the server, exact however they are cut, safe to send again."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.kserve import inference, sequences
from sruserve.server.kserve.infer_body import pack_request
from sruserve.server.kserve.messages import InferRequest, RequestedOutput
from sruserve.server.streams import step as stream_step
from tests.server.conftest import TEXT, Serve
from tests.server.kserve.support import connected, refused, tensor, texts, v1, values_of

_ids = count(1000)
PARAMETERS = {"sequence_id": 7, "sequence_start": True, "sru_step": 1, "binary_data_output": True}


@pytest.fixture
def connection(client: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    with connected(client) as connection:
        yield connection


def step(
    connection: triton.InferenceServerClient, sequence: int | str, text: str, flags: str = "",
    number: int | None = None, model: str = "question", **parameters: Any,
) -> Any:  # fmt: skip
    """One request of a sequence. flags: s: it starts here, e: it ends here."""
    if number is not None:
        parameters["sru_step"] = number
    name = "text_input" if model == "characters" else "text"
    return connection.infer(
        model,
        [texts(text, name=name)],
        sequence_id=sequence,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
        parameters=parameters or None,
    )


@pytest.mark.parametrize("size", [1, 3, 10])
@pytest.mark.parametrize("kind", ["number", "text"])
def test_the_pieces_of_a_text_give_what_the_whole_gives(
    client: httpx.Client, connection: triton.InferenceServerClient, size: int, kind: str
) -> None:
    sequence: int | str = next(_ids) if kind == "number" else f"ältere {next(_ids)}"
    (expected,) = v1(client, "classify", model="question", input=TEXT)
    cuts = range(0, len(TEXT), size)
    for begin in cuts:
        flags = "s" * (begin == cuts[0]) + "e" * (begin == cuts[-1])
        result = step(connection, sequence, TEXT[begin : begin + size], flags)
    assert values_of(result, "score") == [expected["score"]]
    assert values_of(result, "label") == [expected["label"]]


def test_features_in_pieces_end_as_the_whole(
    client: httpx.Client, connection: triton.InferenceServerClient
) -> None:
    rows = [[0.5 * ((i * 3 + j) % 4) - 0.7 for j in range(8)] for i in range(30)]
    sequence = next(_ids)
    for begin in (0, 10, 20):
        result = connection.infer(
            "sensor", [tensor("features", rows[begin : begin + 10])], sequence_id=sequence,
            sequence_start=begin == 0, sequence_end=begin == 20,
        )  # fmt: skip
    whole = connection.infer("sensor", [tensor("features", rows)])
    assert values_of(result, "scores") == values_of(whole, "scores")


def test_a_generator_continues_with_its_text(connection: triton.InferenceServerClient) -> None:
    options: dict[str, Any] = {"model": "characters", "max_tokens": 10}
    sequence = next(_ids)
    parts = values_of(step(connection, sequence, "How far", "s", seed=3, **options), "text_output")
    parts += values_of(step(connection, sequence, "", "", **options), "text_output")
    parts += values_of(step(connection, sequence, "", "e", **options), "text_output")
    whole = connection.infer(
        "characters",
        [texts("How far", name="text_input")],
        parameters={"max_tokens": 30, "seed": 3},
    )
    assert "".join(parts) == values_of(whole, "text_output")[0]


def test_a_request_that_starts_and_ends_is_a_sequence(
    connection: triton.InferenceServerClient,
) -> None:
    sequence = next(_ids)
    for _ in range(3):
        assert values_of(step(connection, sequence, "who is it", "se"), "label")


def test_a_step_that_is_sent_again_gives_the_stored_reply(
    client: httpx.Client, connection: triton.InferenceServerClient
) -> None:
    sequence = next(_ids)
    first = step(connection, sequence, "How far ", "s", 1)
    assert values_of(step(connection, sequence, "How far ", "s", 1), "scores") == values_of(
        first, "scores"
    )
    second = step(connection, sequence, "is it ", "", 2)
    assert values_of(step(connection, sequence, "is it ", "", 2), "scores") == values_of(
        second, "scores"
    )
    with pytest.raises(InferenceServerException) as error:
        step(connection, sequence, "was it ", "", 2)
    assert "computed with other content" in refused(error.value, 422)
    with pytest.raises(InferenceServerException) as error:
        step(connection, sequence, "from", "", 5)
    assert "next step is 3" in refused(error.value, 409)
    last = step(connection, sequence, "from Denver", "e", 3)
    assert values_of(step(connection, sequence, "from Denver", "e", 3), "scores") == values_of(
        last, "scores"
    )
    whole = v1(client, "classify", model="question", input="How far is it from Denver")
    assert values_of(last, "score") == [whole[0]["score"]]
    again = step(connection, sequence, "How far ", "se", 1)  # the id is free again
    assert values_of(again, "scores") == values_of(first, "scores")


@given(
    order=st.permutations(list(PARAMETERS)),
    output_parameters=st.permutations(["classification", "binary_data"]),
)
def test_the_order_of_parameters_does_not_tell_requests_from_another(
    order: list[str], output_parameters: list[str]
) -> None:
    def request(order: Sequence[str], output_parameters: Sequence[str]) -> InferRequest:
        output = RequestedOutput("scores", dict.fromkeys(output_parameters, 1))
        parameters = {name: PARAMETERS[name] for name in order}
        return InferRequest("question", "", "a", [], [output], parameters)

    same = pack_request(request(list(PARAMETERS), ["binary_data", "classification"]))
    assert pack_request(request(order, output_parameters)) == same
    for name in PARAMETERS:
        other = pack_request(request([each for each in order if each != name], output_parameters))
        assert (other == same) == (name == "binary_data_output")


def test_a_step_is_the_same_over_grpc_and_http(
    grpc_server: tuple[httpx.Client, Application], rpc: Any
) -> None:
    sequence = next(_ids)
    text = triton_grpc.InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"How far "]], object))
    first = rpc.infer(
        "question", [text], sequence_id=sequence, sequence_start=True, parameters={"sru_step": 1}
    )
    with connected(grpc_server[0]) as connection:
        again = step(connection, sequence, "How far ", "s", 1)
        assert values_of(again, "scores") == values_of(first, "scores")
        step(connection, sequence, "is it", "e", 2)


def test_a_long_step_is_packed_and_hashed_away_from_the_event_loop(
    connection: triton.InferenceServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def watch(module: Any, name: str) -> None:
        work = getattr(module, name)

        def watched(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*args)

        monkeypatch.setattr(module, name, watched)

    watch(sequences, "pack_request")
    watch(stream_step, "_digest")
    features = [tensor("features", np.ones((3000, 8)))]
    parameters = {"sequence_id": next(_ids), "sequence_start": True, "sequence_end": True}
    connection.infer("sensor", features, **parameters)
    assert len(threads) == 2
    assert all(name.startswith("offload") for name in threads)


def test_a_live_sequence_is_not_started_again(connection: triton.InferenceServerClient) -> None:
    sequence = next(_ids)
    step(connection, sequence, "How far ", "s")
    with pytest.raises(InferenceServerException) as error:
        step(connection, sequence, "who ", "s")
    assert f"sequence {sequence} of model 'question' has already started" in refused(
        error.value, 400
    )
    (whole,) = values_of(step(connection, sequence, "is it", "e"), "score")
    assert [whole] == values_of(connection.infer("question", [texts("How far is it")]), "score")


def test_an_unknown_sequence_must_start(connection: triton.InferenceServerClient) -> None:
    sequence = next(_ids)
    for _ in range(2):
        with pytest.raises(InferenceServerException) as error:
            step(connection, sequence, "who")
        assert refused(error.value, 400) == (
            f"inference request for sequence {sequence} to model 'question' must specify the START "
            "flag on the first request of the sequence"
        )


def test_a_start_that_fails_leaves_nothing(
    connection: triton.InferenceServerClient,
) -> None:
    sequence = next(_ids)
    with pytest.raises(InferenceServerException) as error:
        step(connection, sequence, "", "s")
    refused(error.value, 400)
    assert values_of(step(connection, sequence, "who is it", "se"), "label")


def test_a_sequence_has_no_batches(connection: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as error:
        connection.infer("question", [texts("a", "b")], sequence_id=next(_ids), sequence_start=True)
    assert refused(error.value, 400) == (
        "inference request to model 'question' must specify batch-size 1 due to requirements of "
        "sequence batcher"
    )


def test_a_sequence_begins_from_a_state_token(
    client: httpx.Client, connection: triton.InferenceServerClient
) -> None:
    (begun,) = v1(client, "classify", model="question", input="How far is ", more=True)
    sequence = next(_ids)
    result = step(connection, sequence, "it from", "se", sru_state=begun["state"])
    (whole,) = v1(client, "classify", model="question", input="How far is it from")
    assert values_of(result, "score") == [whole["score"]]


@pytest.mark.parametrize(
    ("model", "flags", "parameters", "message"),
    [
        ("whole", "s", {}, "cannot continue an input"),
        ("question", "s", {"sru_return_state": True}, "leave out 'sru_return_state'"),
        ("question", "", {"sru_state": "a"}, "leave out 'sru_state'"),
        ("question", "s", {"sru_state": "a"}, "not base64"),
        ("question", "s", {"sru_step": 2}, "must have 'sru_step' 1"),
        ("question", "s", {"sru_step": -1}, "must be a number from 0"),
        ("question", "s", {"sru_preset": "none"}, "has no preset 'none'"),
    ],
)
def test_what_cannot_be_a_sequence(
    connection: triton.InferenceServerClient,
    model: str,
    flags: str,
    parameters: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(InferenceServerException) as error:
        step(connection, next(_ids), "who", flags, model=model, **parameters)
    assert message in str(error.value)
    assert error.value.status() in ("400", "404")


def test_a_sequence_ends_however_large_its_state_is(serve: Serve) -> None:
    bounds = {"max_body_bytes": 320, "max_input_bytes": 100}
    with serve("characters", **bounds) as (client, application):
        served = application.lifecycle.catalogue.with_states("characters")
        assert 8 * served.state_numbers(StateOutput.COPY) > 320, "no reply has room for it"
        for flags in ("start",), (), ("end",), ("start", "end"):
            sequence = {f"sequence_{flag}": True for flag in flags}
            text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["to"]}
            parameters = {"sequence_id": 5, "max_tokens": 1, **sequence}
            body = {"inputs": [text], "parameters": parameters}
            reply = client.post("/v2/models/characters/infer", json=body)
            assert reply.status_code == 200, reply.text


def test_long_parameters_are_read_and_packed_away_from_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*args)

        return note

    monkeypatch.setattr(inference, "_read_request", noted(inference._read_request))
    monkeypatch.setattr(sequences, "pack_request", noted(pack_request))
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    sequence = {"sequence_id": next(_ids), "sequence_start": True, "sequence_end": True}
    for regex in ("a", "a" * 100_000):
        parameters = {**sequence, "max_tokens": 1, "regex": regex}
        client.post(
            "/v2/models/characters/infer", json={"inputs": [text], "parameters": parameters}
        )
    assert [name.startswith("offload") for name in threads] == [False, False, True, True]
