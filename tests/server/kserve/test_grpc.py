"""Inference over gRPC, as Triton's own client asks for it: it gets what HTTP gives."""

import asyncio
import queue
from itertools import count
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as proto
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from tests.server.conftest import TEXT
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import FEATURES, INFER, infer, inputs_of, texts
from tests.server.kserve.support import connected

_ids = count(1)


@pytest.mark.parametrize("model", ["question", "whole", "sensor", "characters", "ids"])
def test_an_inference_answers_what_http_answers(
    rpc: Any, grpc_server: tuple[httpx.Client, Application], model: str
) -> None:
    options = {"max_tokens": 9, "seed": 4} if model in ("characters", "ids") else None
    over_grpc = rpc.infer(model, inputs_of(triton, model), parameters=options, request_id="7")
    with connected(grpc_server[0]) as http:
        over_http = http.infer(model, inputs_of(triton_http, model), parameters=options)
    response = over_grpc.get_response()
    assert (response.model_name, response.model_version, response.id) == (model, "1", "7")
    assert response.outputs
    for output in response.outputs:
        one, other = (each.as_numpy(output.name) for each in (over_grpc, over_http))
        assert one.shape == tuple(output.shape)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_state_continues_over_grpc(rpc: Any) -> None:
    def ask(text: str, **parameters: Any) -> Any:
        return rpc.infer("question", [texts(triton, "text", text)], parameters=parameters)

    first = ask(TEXT[:11], sru_return_state=True).get_response()
    state = first.parameters["sru_state"].string_param
    rest = ask(TEXT[11:], sru_state=state)
    np.testing.assert_array_equal(rest.as_numpy("scores"), ask(TEXT).as_numpy("scores"))


@pytest.mark.parametrize("kind", [int, str])
def test_a_sequence_in_pieces_ends_as_the_whole(rpc: Any, kind: type) -> None:
    sequence = kind(next(_ids))
    for begin in range(0, len(TEXT), 7):
        result = rpc.infer(
            "question",
            [texts(triton, "text", TEXT[begin : begin + 7])],
            sequence_id=sequence,
            sequence_start=begin == 0,
            sequence_end=begin + 7 >= len(TEXT),
        )
    whole = rpc.infer("question", [texts(triton, "text", TEXT)])
    np.testing.assert_array_equal(result.as_numpy("scores"), whole.as_numpy("scores"))


def test_sequences_share_a_stream_of_responses(
    rpc: Any, grpc_server: tuple[httpx.Client, Application]
) -> None:
    whole = rpc.infer("question", [texts(triton, "text", TEXT)]).as_numpy("scores")
    sequences = [next(_ids) + 1000 for _ in range(3)]
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(grpc_address(grpc_server[1])) as own:
        own.start_stream(lambda result, error: answers.put((result, error)))
        for begin in range(0, len(TEXT), 12):
            for sequence in sequences:
                own.async_stream_infer(
                    "question",
                    [texts(triton, "text", TEXT[begin : begin + 12])],
                    sequence_id=sequence,
                    sequence_start=begin == 0,
                    sequence_end=begin + 12 >= len(TEXT),
                )
        outcomes = [answers.get(timeout=60) for _ in range(0, len(TEXT), 12) for _ in sequences]
        own.stop_stream()
    assert [error for _, error in outcomes if error] == []
    for result, _ in outcomes[-len(sequences) :]:
        np.testing.assert_array_equal(result.as_numpy("scores"), whole)


def test_a_sequence_that_was_not_started_gets_the_error_of_triton(rpc: Any) -> None:
    with pytest.raises(InferenceServerException, match="must specify the START flag") as caught:
        rpc.infer(
            "question",
            [texts(triton, "text", "who")],
            sequence_id=987,
        )
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_elements_may_be_typed_instead_of_raw(rpc: Any, channel: grpc.Channel) -> None:
    expected = rpc.infer("sensor", inputs_of(triton, "sensor")).as_numpy("scores")
    request = proto.ModelInferRequest(model_name="sensor")
    one = request.inputs.add(name="features", datatype="FP32", shape=FEATURES.shape)
    one.contents.fp32_contents.extend(FEATURES.reshape(-1).tolist())
    reply = triton.InferResult(infer(channel, request))
    np.testing.assert_array_equal(reply.as_numpy("scores"), expected)


def tensor(name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    infer_input = proto.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape
    )
    for field, values in contents.items():
        getattr(infer_input.contents, field).extend(values)
    return infer_input


@pytest.mark.parametrize(
    ("model", "inputs", "raw"),
    [
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"\0" * 31]),
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"\0" * 36]),
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"", b""]),
        ("sensor", [tensor("features", "FP32", [1, 8])], []),
        ("sensor", [tensor("features", "FP32", [-1, -8])], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1 << 62, 1 << 62])], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1] * 99)], [b"\0" * 4]),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[1.0] * 8)], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[1.0] * 7)], []),
        ("sensor", [tensor("features", "FP32", [1, 8], fp64_contents=[1.0] * 8)], []),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[float("nan")] * 8)], []),
        ("sensor", [tensor("features", "FP16", [1, 8], fp32_contents=[1.0] * 8)], []),
        ("sensor", [tensor("features", "FP99", [1, 8])], [b"\0" * 32]),
        ("sensor", [tensor("features", "INT8", [1], int_contents=[300])], []),
        ("sensor", [], []),
        ("ids", [tensor("input_ids", "INT64", [2], int64_contents=[1, 99])], []),
        ("question", [tensor("text", "BYTES", [1, 1])], [b"\x09\0\0\0abc"]),
        ("question", [tensor("text", "BYTES", [1, 1], bytes_contents=[b"\xff"])], []),
        ("question", [tensor("other", "BYTES", [1, 1], bytes_contents=[b"who"])], []),
    ],
)
def test_wrong_tensors_are_the_clients_fault(
    channel: grpc.Channel, model: str, inputs: list[Any], raw: list[bytes]
) -> None:
    request = proto.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw)
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata", "ModelReady"])
def test_bytes_that_are_no_message_are_the_clients_fault(
    channel: grpc.Channel, method: str
) -> None:
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff\xff", timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@given(st.data())
@settings(max_examples=150)
def test_no_bytes_are_the_servers_fault(channel: grpc.Channel, data: st.DataObject) -> None:
    request = proto.ModelInferRequest(
        model_name="question", inputs=[tensor("text", "BYTES", [1, 1], bytes_contents=[b"who"])]
    )
    request.parameters["sequence_id"].int64_param = 0
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    call = channel.unary_unary(INFER, None, proto.ModelInferResponse.FromString)
    outcome = call.future(bytes(message[data.draw(st.integers(0, 9)) :]), timeout=60)
    faults = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert outcome.code() in (grpc.StatusCode.OK, *faults)


def test_a_message_longer_than_a_body_may_be_is_refused(channel: grpc.Channel) -> None:
    request = proto.ModelInferRequest(model_name="sensor", raw_input_contents=[bytes(2 << 20)])
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_infer_in_the_background_and_many_at_a_time(rpc: Any) -> None:
    results: queue.Queue[Any] = queue.Queue()
    expected = rpc.infer("question", inputs_of(triton, "question")).as_numpy("scores")
    for _ in range(50):
        rpc.async_infer(
            "question",
            inputs_of(triton, "question"),
            lambda result, error: results.put((result, error)),
        )
    for _ in range(50):
        result, error = results.get(timeout=60)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("scores"), expected)


def test_a_stream_answers_in_order_and_continues_after_an_error(
    rpc: Any, grpc_server: tuple[httpx.Client, Application]
) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    words = ["who", "what", "where", "when"]
    expected = [
        rpc.infer("question", [texts(triton, "text", word)]).as_numpy("scores") for word in words
    ]
    with triton.InferenceServerClient(grpc_address(grpc_server[1])) as own:
        own.start_stream(lambda result, error: answers.put((result, error)))
        for i, word in enumerate(words):
            own.async_stream_infer("question", [texts(triton, "text", word)], request_id=str(i))
            own.async_stream_infer("absent", [texts(triton, "text", word)], request_id="?")
        for i, scores in enumerate(expected):
            result, error = answers.get(timeout=60)
            assert error is None
            assert result.get_response().id == str(i)
            np.testing.assert_array_equal(result.as_numpy("scores"), scores)
            _, error = answers.get(timeout=60)
            assert "unknown model" in str(error)
        own.stop_stream()


def test_the_asynchronous_client(grpc_server: tuple[httpx.Client, Application], rpc: Any) -> None:
    expected = rpc.infer("question", inputs_of(triton, "question")).as_numpy("scores")

    async def run() -> None:
        async with triton_aio.InferenceServerClient(grpc_address(grpc_server[1])) as own:
            assert await own.is_server_ready()
            calls = (own.infer("question", inputs_of(triton_aio, "question")) for _ in range(20))
            for result in await asyncio.gather(*calls):
                np.testing.assert_array_equal(result.as_numpy("scores"), expected)

            async def requests() -> Any:
                for _ in range(3):
                    yield {"model_name": "question", "inputs": inputs_of(triton_aio, "question")}

            results = [each async for each in own.stream_infer(requests())]
            assert len(results) == 3
            for result, error in results:
                assert error is None
                np.testing.assert_array_equal(result.as_numpy("scores"), expected)

    asyncio.run(run())
