"""A server with small limits of gRPC, and clients that hold what they may."""

from typing import Any

import grpc
import httpx
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as proto
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import INFER, inputs_of
from tests.server.kserve.raw_http2 import RawClient, message, unfinished

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


LIVE, READY = (f"/inference.GRPCInferenceService/Server{name}" for name in ("Live", "Ready"))


ACME, LABS = "acme-key-123", "labs-key-123"


LONG = 1 << 20  # the longest message


READS = 4  # of as long messages at a time: so many go into the queue


LATE = "the request was too slow: it may take {} seconds; send it faster"


UNREAD = 64 << 10  # bytes of a message that may wait unread


LIMITS: dict[str, Any] = {
    "grpc_port": 0,
    "max_body_bytes": LONG,
    "max_queue_bytes": READS * LONG,
    "grpc_streams": 8,
}


def port(running: tuple[httpx.Client, Application]) -> int:
    assert running[1].grpc is not None
    return running[1].grpc.port


def flood(
    client: RawClient, method: str, calls: int, key: str | None = None, still_open: int = 0
) -> int:
    """Begin calls whose messages lack a byte, until all but `still_open` end.

    Returns the bytes that the server held at a time at most, as if it kept all that came of a call.
    """
    left = {client.call(method, key): unfinished(LONG) for _ in range(calls)}
    received_bytes: list[int] = []

    def ended() -> bool:
        for call, data in left.items():
            if call not in client.ended:
                left[call] = data[client.send(call, data[:UNREAD]) :]
        received = [LONG - len(data) for call, data in left.items() if call not in client.ended]
        received_bytes.append(sum(received))
        return len(received) <= still_open

    client.until(ended)
    assert calls - len(client.ended) == still_open
    return max(received_bytes)


def infer(running: tuple[httpx.Client, Application], key: str = "") -> str | None:
    """Why an inference is refused; None: it is not."""
    headers = {"authorization": f"Bearer {key}"}
    with triton.InferenceServerClient(grpc_address(running[1])) as client:
        try:
            client.infer("question", inputs_of(triton, "question"), headers=headers)
        except InferenceServerException as problem:
            return str(problem)
    return None


def stream(running: tuple[httpx.Client, Application], key: str = "") -> list[Any]:
    """The responses of a stream with two requests."""
    with grpc.insecure_channel(grpc_address(running[1])) as channel:
        call = channel.stream_stream(STREAM, None, proto.ModelStreamInferResponse.FromString)
        metadata = (("authorization", f"Bearer {key}"),)
        return list(call(iter(2 * (question(),)), metadata=metadata, timeout=60))


def question() -> bytes:
    request = proto.ModelInferRequest(model_name="question")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(b"who")
    return bytes(request.SerializeToString())


def inferences(http: httpx.Client) -> int:
    """How many have been answered."""
    (model,) = http.get("/v2/models/question/stats").json()["model_stats"]
    return int(model["inference_count"])


def fill_with_slow_messages(client: RawClient) -> set[int]:
    """Begin a message more than a connection may send slowly: the calls whose places it has."""
    calls = {client.call(INFER) for _ in range(READS // 2 + 1)}
    for call in calls:
        client.send(call, message(question())[:-1])
    client.until(lambda: bool(client.ended))
    (refused,) = client.ended
    assert b"too many messages arrive slowly" in client.ended[refused]
    return calls - {refused}
