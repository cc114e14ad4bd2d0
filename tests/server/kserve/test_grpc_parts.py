"""A message of millions of parts is refused before an object is made of each."""

from collections.abc import Hashable
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.errors import InputTooLong
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.kserve.grpc.codec import read_request
from sruserve.server.kserve.grpc.parts import MAX_FIELDS, check_fields, parsing_cost
from tests.server.kserve.grpc_inputs import infer

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def varint(number: int) -> bytes:
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def field(number: int, data: bytes = b"") -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(data: bytes) -> bytes:
    return field(5, data)


def contents(data: bytes) -> bytes:
    return tensor(field(5, data))


TOO_MANY = {
    "inputs": field(5),
    "outputs": field(6),
    "raw contents": field(7),
    "parameters": field(4),
    "names": field(1),
    "unknown numbers": varint(99 << 3) + b"\1",
    "unknown groups": varint(99 << 3 | 3) + varint(99 << 3 | 4),
    "fixed numbers": varint(99 << 3 | 5) + b"\0\0\0\0",
    "long tags": b"\xaa\x80\x80\x80\0\0",
}


@pytest.mark.parametrize("part", TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_fields_are_refused_wherever_they_are(part: bytes) -> None:
    parts = part * (MAX_FIELDS + 1)
    for message in (parts, tensor(parts), contents(parts)):
        with pytest.raises(InputTooLong, match="fields and numbers"):
            read_request(message)


@pytest.mark.parametrize(
    "message",
    [
        contents(field(2, b"\1" * 8_000_000)),
        contents(field(5, b"\1" * 8_000_000)),
        tensor(field(3, b"\1" * 8_000_000)),
        contents(field(8) * 4_000_000),
        contents(field(5)) * 1_000_000,
        tensor(field(4, field(2, field(1)))) * 700_000,
    ],
    ids=["int", "uint64", "a shape", "texts", "tensors", "parameters"],
)
def test_so_are_too_many_numbers_and_whatever_lies_deep(message: bytes) -> None:
    with pytest.raises(InputTooLong):
        check_fields(proto.ModelInferRequest, message)


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        (contents(field(8)) * 300, False),
        (contents(field(8) * 1100), True),
        (contents(field(2, b"\1" * 20_000)), True),
        (field(7, b"\1" * 60_000), False),
        (field(7)[:-1], False),
    ],
    ids=["few tensors", "texts", "int", "raw contents", "half a field"],
)
def test_a_message_of_many_fields_has_a_cost(message: bytes, waits: bool) -> None:
    cost = parsing_cost(proto.ModelInferRequest, message)
    assert cost == (len(message) // 2 if waits else 0)


def test_a_message_of_many_fields_waits_for_its_turn(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    take = ParseTurns.take

    def see(turns: ParseTurns, cost: int, owner: Hashable) -> Any:
        begun = take(turns, cost, owner)
        assert begun is not None
        costs.append(cost)
        return begun

    monkeypatch.setattr(ParseTurns, "take", see)
    for message in (field(7, b"\1" * 60_000), contents(field(8) * 20_000)):
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel, message)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert costs == [len(message) // 2]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99))
@settings(max_examples=10)
def test_what_lies_in_a_message_is_what_is_counted(
    tensors: int, parameters: int, texts: int
) -> None:
    request = proto.ModelInferRequest()
    for i in range(tensors):
        tensor = request.inputs.add(name=str(i))
        tensor.contents.bytes_contents.extend([b"a"] * texts)
        for j in range(parameters):
            tensor.parameters[str(j)].int64_param = j + 1
    data = request.SerializeToString()
    # a tensor, its name, its contents and their texts; a parameter, its name, its value, a number
    fields = tensors * (3 + texts + 4 * parameters)
    check_fields(proto.ModelInferRequest, data + field(1) * (MAX_FIELDS - fields))
    with pytest.raises(InputTooLong):
        check_fields(proto.ModelInferRequest, data + field(1) * (MAX_FIELDS - fields + 1))


@given(st.binary(max_size=200))
def test_what_is_no_message_is_left_to_the_parser(data: bytes) -> None:
    check_fields(proto.ModelInferRequest, data.ljust(1, b"\0"))


def test_long_tensors_are_few_parts() -> None:
    request = proto.ModelInferRequest(raw_input_contents=[bytes(1 << 20)] * 8)
    tensor = request.inputs.add(name="a", shape=[1] * 16)
    tensor.contents.int64_contents.extend([-1] * (1 << 15))
    check_fields(proto.ModelInferRequest, request.SerializeToString())


@pytest.mark.parametrize("part", [field(5), field(7), contents(b"")])
def test_a_message_of_too_many_fields_gets_an_error(channel: grpc.Channel, part: bytes) -> None:
    message = part * 200_000
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "fields and numbers" in str(caught.value.details())
    stream = channel.stream_stream(STREAM, None, proto.ModelStreamInferResponse.FromString)
    replies: list[Any] = list(stream(iter([message, message]), timeout=60))
    assert ["fields and numbers" in reply.error_message for reply in replies] == [True, True]
