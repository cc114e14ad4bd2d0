"""What else a gRPC server does: describe, load, count, let in, give up, stop."""

import os
import queue
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from sruserve.server.kserve.grpc.service import SERVICE as NAME
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import INFER, inputs_of, texts
from tests.server.kserve.support import connected
from tests.server.observing import until
from tests.server.processes import ended, grpc_port_of, preloaded, serving
from tests.server.slow_server import slow_server

FULL, TOO_MANY = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_the_server_says_of_itself_and_its_models(
    rpc: Any, grpc_server: tuple[httpx.Client, Application]
) -> None:
    assert rpc.is_server_live()
    assert rpc.is_server_ready()
    assert rpc.is_model_ready("question")
    assert rpc.is_model_ready("question", "1")
    metadata = rpc.get_server_metadata(as_json=True)
    with connected(grpc_server[0]) as http:
        assert metadata == http.get_server_metadata()
        for model in ("question", "sensor", "characters"):
            assert shapes(rpc.get_model_metadata(model, as_json=True)) == shapes(
                http.get_model_metadata(model)
            )
            config = rpc.get_model_config(model).config
            assert config.name == model
            assert config.max_batch_size == http.get_model_config(model)["max_batch_size"]
            assert config.WhichOneof("scheduling_choice") == "sequence_batching"


def shapes(metadata: dict[str, Any]) -> Any:
    """Names, types and shapes; protobuf's JSON writes numbers as texts."""
    return [
        (one["name"], one["datatype"], [int(size) for size in one["shape"]])
        for one in (*metadata["inputs"], *metadata["outputs"])
    ]


def test_statistics_count_inferences_over_grpc(rpc: Any) -> None:
    before = rpc.get_inference_statistics("question").model_stats
    rpc.infer("question", inputs_of(triton, "question"))
    (after,) = rpc.get_inference_statistics("question").model_stats
    assert after.inference_count == (before[0].inference_count if before else 0) + 2
    assert after.inference_stats.success.ns > 0


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda rpc: rpc.get_model_metadata("absent"), "NOT_FOUND"),
        (lambda rpc: rpc.get_model_metadata("question", "9"), "NOT_FOUND"),
        (lambda rpc: rpc.get_system_shared_memory_status(), "UNIMPLEMENTED"),
        (lambda rpc: rpc.get_cuda_shared_memory_status(), "UNIMPLEMENTED"),
        (lambda rpc: rpc.register_system_shared_memory("a", "b", 1), "UNIMPLEMENTED"),
        (lambda rpc: rpc.get_trace_settings(), "UNIMPLEMENTED"),
        (lambda rpc: rpc.update_log_settings({"log_info": True}), "UNIMPLEMENTED"),
        (lambda rpc: rpc.load_model("absent"), "NOT_FOUND"),
        (lambda rpc: rpc.load_model("../question"), "NOT_FOUND"),
        (lambda rpc: rpc.load_model("question", config="{}"), "UNIMPLEMENTED"),
    ],
)
def test_an_impossible_request_gets_an_error_with_its_code(
    rpc: Any, ask: Callable[[Any], Any], status: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(rpc)
    assert caught.value.status() == f"StatusCode.{status}"


def test_models_are_unloaded_and_loaded_over_grpc(rpc: Any) -> None:
    rpc.unload_model("ids")
    index = {model.name: model.state for model in rpc.get_model_repository_index().models}
    assert index["ids"] == "UNAVAILABLE"
    assert index["question"] == "READY"
    rpc.load_model("ids")
    assert rpc.is_model_ready("ids")


def test_health_is_reported_once_and_watched(
    grpc_server: tuple[httpx.Client, Application], channel: grpc.Channel
) -> None:
    serving = health_pb2.HealthCheckResponse
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "inference.GRPCInferenceService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(request, timeout=60).status == serving.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == serving.SERVING
    lifecycle = grpc_server[1].lifecycle
    lifecycle.draining = True
    try:
        assert next(watch).status == serving.NOT_SERVING
        assert stub.Check(health_pb2.HealthCheckRequest()).status == serving.NOT_SERVING
    finally:
        lifecycle.draining = False
    assert next(watch).status == serving.SERVING
    watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_client_that_waits_no_longer_withdraws_its_work(
    grpc_server: tuple[httpx.Client, Application], rpc: Any, how: str
) -> None:
    engine = grpc_server[1].lifecycle.catalogue["characters"].engine
    body: dict[str, Any] = {"parameters": {"max_tokens": 90_000}}
    inputs = [texts(triton, "text_input", "a")]
    outcomes: queue.Queue[Any] = queue.Queue()

    def ended(result: Any, error: Any) -> None:
        outcomes.put(error)

    def begin(seconds: float | None) -> Any:
        return rpc.async_infer("characters", inputs, ended, client_timeout=seconds, **body)

    def runs_until_its_deadline(seconds: float) -> bool:
        """Whether the work had begun before the deadline, which a slow machine may prevent."""
        begin(seconds)
        until(lambda: engine.running == 1 or not outcomes.empty())
        has_run = engine.running == 1
        assert "Deadline" in str(outcomes.get(timeout=60))
        return has_run

    if how == "deadline":
        assert any(map(runs_until_its_deadline, (0.5, 4.0, 32.0)))
    else:
        call = begin(None)
        until(lambda: engine.running == 1)
        call.cancel()
    until(lambda: engine.running == 0)
    until(lambda: grpc_server[1].lifecycle.active == 0)


@pytest.mark.parametrize("method", ["ModelStreamInfer", "ModelInfer", "RepositoryIndex"])
def test_calls_that_clients_hold_open_have_a_bound_that_probes_do_not_know(
    serve: Serve, method: str
) -> None:
    path = f"/inference.GRPCInferenceService/{method}"
    limits = {"max_queue_bytes": 2 * 64 << 10, "grpc_streams": 4}
    with (
        serve("question", grpc_port=0, **limits) as (http, application),
        grpc.insecure_channel(grpc_address(application)) as channel,
        triton.InferenceServerClient(grpc_address(application)) as client,
    ):
        # calls that wait for a connection begin on it in any order
        grpc.channel_ready_future(channel).result(60)
        hold = channel.stream_stream(path)
        silent = [queue.Queue[bytes]() for _ in range(2)]  # requests that do not come
        open_calls = [hold(iter(requests.get, b"")) for requests in silent]
        refused = until_refused(hold)
        assert client.is_server_live()
        assert client.is_model_ready("question")
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        if method == "ModelStreamInfer":
            assert refused == (TOO_MANY, "too many ModelStreamInfer")
        else:
            assert refused == (FULL, "Exceeds maximum queue siz")
        labels = f'outcome="refused",route="{INFER if method != "RepositoryIndex" else f"/{NAME}"}"'
        assert f'sru_requests_total{{model="unknown",{labels}}}' in http.get("/metrics").text
        assert refusal(client) is None  # another connection
        open_calls.pop().cancel()
        until(lambda: ending(hold).code() is not refused[0])
        for requests in silent:
            requests.put(b"")  # their end, also for the cancelled call's thread
        end = "OK" if method == "ModelStreamInfer" else "INVALID_ARGUMENT"
        assert open_calls.pop().code().name == end


def until_refused(hold: Any) -> tuple[Any, str]:
    """How a call of a client ends that has too many, and how the reason begins."""
    until(lambda: ending(hold).code() in (FULL, TOO_MANY))
    call = ending(hold)
    return call.code(), call.details()[:25]


def ending(hold: Any) -> Any:
    """A call with one message, at its end."""
    call = hold(iter([b""]))
    with suppress(grpc.RpcError):
        list(call)
    return call


def refusal(client: Any) -> str | None:
    """Why the server has no place for an inference; None: it has."""
    try:
        client.infer("question", inputs_of(triton, "question"))
    except InferenceServerException as problem:
        return str(problem)
    return None


def test_keys_are_asked_of_everything_but_probes(serve: Serve) -> None:
    with (
        serve("question", grpc_port=0, api_keys="acme:acme-key-123") as (_, application),
        triton.InferenceServerClient(grpc_address(application)) as client,
    ):
        assert client.is_server_ready()
        assert client.is_model_ready("question")
        asks: tuple[Callable[[], Any], ...] = (
            lambda: client.infer("question", inputs_of(triton, "question")),
            lambda: client.get_server_metadata(),
            lambda: client.unload_model("question"),
        )
        for ask in asks:
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        headers = {"authorization": "Bearer acme-key-123"}
        result = client.infer("question", inputs_of(triton, "question"), headers=headers)
        assert result.as_numpy("label").shape == (2, 1)


def test_models_are_loaded_and_unloaded_over_http_alone_if_the_operator_says_so(
    serve: Serve,
) -> None:
    with (
        serve("question", grpc_port=0, model_control="http") as (http, application),
        triton.InferenceServerClient(grpc_address(application)) as client,
    ):
        for ask in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="SRUSERVE_MODEL_CONTROL=http") as no:
                ask("question")
            assert no.value.status() == "StatusCode.PERMISSION_DENIED"
        assert client.is_model_ready("question")
        for change in ("unload", "load"):
            reply = http.post(f"/v2/repository/models/question/{change}")
            assert reply.status_code == 200


def test_calls_are_counted(grpc_server: tuple[httpx.Client, Application], rpc: Any) -> None:
    rpc.infer("question", inputs_of(triton, "question"))
    metrics = grpc_server[0].get("/metrics").text
    assert f'sru_requests_total{{model="question",outcome="ok",route="{INFER}"}}' in metrics


def test_sigterm_finishes_calls_and_refuses_new_ones(folders: Path, tmp_path: Path) -> None:
    program, slow = slow_server(tmp_path)
    settings = {"grpc_port": "0", "drain_seconds": "600"}
    with serving(folders / "characters", program=program, **settings) as (_, process):
        port = grpc_port_of(process)
        outcomes: queue.Queue[Any] = queue.Queue()
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as rpc:
            rpc.async_infer(
                "characters",
                [texts(triton, "text_input", "To be")],
                lambda result, error: outcomes.put((result, error)),
                parameters={"max_tokens": 10_000},
            )
            until(lambda: running(rpc))
            process.send_signal(signal.SIGTERM)
            until(lambda: not rpc.is_server_ready())
            with pytest.raises(InferenceServerException, match="Server is stopping") as caught:
                rpc.infer("characters", [texts(triton, "text_input", "who")])
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            slow.unlink()
            result, error = outcomes.get(timeout=300)
            assert error is None
            assert len(result.as_numpy("text_output").reshape(-1)[0]) > 5000
        ended(process)


def running(rpc: Any) -> bool:
    (model,) = rpc.get_inference_statistics("characters").model_stats
    return bool(model.execution_count)


def test_all_workers_listen_on_the_port_and_nobody_else_can(folders: Path) -> None:
    with serving(folders / "question", grpc_port="0", workers="2") as (_, process):
        port = grpc_port_of(process)
        for _ in range(4):
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as rpc:
                assert rpc.infer("question", [texts(triton, "text", "who")]) is not None
        second = preloaded(str(folders / "question"), grpc_port=str(port))
        output, _ = second.communicate(timeout=300)
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1 port {port} for gRPC" in output
        assert "set SRUSERVE_GRPC_PORT to another port, to 0 for a free one, or to off" in output


def test_the_kernel_holds_little_of_what_a_client_or_the_server_does_not_read(
    grpc_server: tuple[httpx.Client, Application],
) -> None:
    grpc_part = grpc_server[1].grpc
    assert grpc_part is not None
    with socket.create_connection(("127.0.0.1", grpc_part.port)) as client:
        until(lambda: bool(buffers_of_other_end(client)))
        ((unread, unsent),) = buffers_of_other_end(client)
    assert unread == 256 << 10  # fixed, so that it does not grow
    assert unsent == 16 << 10


def buffers_of_other_end(client: socket.socket) -> list[tuple[int, int]]:
    """The buffers that this process's end of a connection may fill; empty: it is not accepted."""
    buffers = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), closed_after(os.dup(int(name))) as each:
            if each.family != socket.AF_UNIX and each.getpeername()[1] == client.getsockname()[1]:
                unread = each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                unsent = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
                buffers.append((unread, unsent % (1 << 32)))
    return buffers


@contextmanager
def closed_after(descriptor: int) -> Iterator[socket.socket]:
    """A descriptor as a socket; raises `OSError` for others."""
    try:
        each = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with each:
        yield each
