"""Every protocol over TLS gives what it gives without, and unfit clients are turned away."""

import json
import socket
import ssl
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
import websockets
from cryptography.hazmat.primitives.asymmetric import rsa
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from tests.server.conftest import LABELS, TEXT
from tests.server.http.raw_replies import all_replies
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import inputs_of
from tests.server.posting import CLASSIFY, COMPLETE, SCORE, refusal
from tests.server.tls.authority import Authority
from tests.server.tls.clients import address, connect, context
from tests.server.tls.conftest import Running
from tests.server.tls.sockets import open_websocket

BODY = {"model": "question", "input": TEXT}
GENERATE = {"model": "characters", "prompt": "To be", "seed": 3, "max_tokens": 200}
PROBES = ("/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready")


def test_replies_and_event_streams_are_those_without_tls(
    encrypted: Running, client: httpx.Client
) -> None:
    label = encrypted[0].post(CLASSIFY, json=BODY).json()["results"]
    assert label == client.post(CLASSIFY, json=BODY).json()["results"]
    assert text_of(encrypted[0]) == text_of(client)


def text_of(client: httpx.Client) -> str:
    with client.stream("POST", COMPLETE, json=GENERATE | {"stream": True}) as reply:
        assert reply.status_code == 200
        events = [line for line in reply.iter_lines() if line.startswith("data: ")]
    lines = [event.removeprefix("data: ") for event in events]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def test_a_long_body_and_a_long_reply_pass_unchanged(
    encrypted: Running, client: httpx.Client
) -> None:
    body = {"model": "characters", "input": "To be " * 50_000}
    score, page = client.post(SCORE, json=body), client.get("/openapi.json")
    assert len(page.content) > 100_000
    assert encrypted[0].post(SCORE, json=body).json()["results"] == score.json()["results"]
    assert encrypted[0].get("/openapi.json").content == page.content


def test_a_websocket_is_encrypted(encrypted: Running, authority: Authority) -> None:
    url = str(encrypted[0].base_url).replace("https", "wss", 1) + "/v1/stream"
    with open_websocket(url, context(authority)) as connection:
        connection.send(json.dumps(BODY))
        assert json.loads(connection.recv(60))["label"] in LABELS


def test_a_page_of_this_host_that_came_without_tls_is_refused(
    encrypted: Running, authority: Authority
) -> None:
    """Anybody on the network can change such a page, and browsers add their certificates."""
    client = encrypted[0]
    own, unsafe = (f"{scheme}://{client.base_url.netloc.decode()}" for scheme in ("https", "http"))
    assert client.post(CLASSIFY, json=BODY, headers={"origin": own}).status_code == 200
    refusal(client.post(CLASSIFY, json=BODY, headers={"origin": unsafe}), 403, "origin_not_allowed")
    url = own.replace("https", "wss", 1) + "/v1/stream"
    with open_websocket(url, context(authority), Origin(own)) as connection:
        connection.send(json.dumps(BODY))
        assert json.loads(connection.recv(60))["label"] in LABELS
    with pytest.raises(InvalidStatus), open_websocket(url, context(authority), Origin(unsafe)):
        pass


def test_kserve_is_encrypted_over_http_and_over_grpc(
    encrypted: Running, authority: Authority
) -> None:
    client, application = encrypted
    host, port = address(client)
    over_http = triton_http.InferenceServerClient(
        f"{host}:{port}", ssl=True, ssl_context_factory=lambda: context(authority)
    )
    inputs = inputs_of(triton_http, "question")
    expected = over_http.infer("question", inputs).as_numpy("label").tolist()
    over_http.close()
    with triton.InferenceServerClient(
        grpc_address(application), ssl=True, root_certificates=str(authority.file)
    ) as over_grpc:
        result = over_grpc.infer("question", inputs_of(triton, "question"))
    assert result.as_numpy("label").tolist() == expected


def test_versions_before_1_2_and_renegotiation_are_refused(
    encrypted: Running, authority: Authority
) -> None:
    old = context(authority)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        connect(encrypted[0], old)
    assert encrypted[1].certificates is not None
    assert encrypted[1].certificates.context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_http_1_1_is_agreed_on(
    encrypted: Running, authority: Authority, version: ssl.TLSVersion
) -> None:
    trusting = context(authority)
    trusting.minimum_version = trusting.maximum_version = version
    trusting.set_alpn_protocols(["h2", "http/1.1"])
    with connect(encrypted[0], trusting) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert all_replies(connection).startswith(b"HTTP/1.1 200 OK")  # and close_notify


@pytest.mark.parametrize("data", [b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", bytes(100)])
def test_what_is_not_tls_is_closed_at_once(encrypted: Running, data: bytes) -> None:
    with socket.create_connection(address(encrypted[0]), 60) as connection:
        connection.sendall(data)
        assert len(all_replies(connection)) < 100  # an alert at most
    assert encrypted[0].get("/livez").status_code == 200


def test_a_client_without_a_certificate_gets_only_probes(
    certified: Running, authority: Authority
) -> None:
    client, application = certified
    for path in PROBES:
        assert client.get(path).status_code == 200
    for method, path in (("POST", CLASSIFY), ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/v2")):
        reply = client.request(method, path, json=BODY)
        assert reply.status_code == 403
        assert reply.json()["error"]["code"] == "client_certificate_required"
    url = str(client.base_url).replace("https", "wss", 1) + "/v1/stream"
    with (
        pytest.raises(websockets.InvalidStatus) as refused,
        open_websocket(url, context(authority)),
    ):
        pass
    assert b"client_certificate_required" in refused.value.response.body
    assert not grpc_is_live(grpc_address(application), authority)


def grpc_is_live(address: str, authority: Authority, name: str = "") -> bool:
    own: dict[str, Any] = {}
    if name:
        files = authority.settings(name)
        own = {"private_key": files["tls_key"], "certificate_chain": files["tls_cert"]}
    with triton.InferenceServerClient(
        address, ssl=True, root_certificates=str(authority.file), **own
    ) as client:
        try:
            return bool(client.is_server_live())
        except InferenceServerException as error:
            if error.status() != "StatusCode.UNAVAILABLE":
                raise
            return False


def test_a_client_with_a_certificate_gets_everything(
    certified: Running, authority: Authority
) -> None:
    own = context(authority, "client")
    with httpx.Client(base_url=certified[0].base_url, verify=own) as client:
        assert client.post(CLASSIFY, json=BODY).status_code == 200
    url = str(certified[0].base_url).replace("https", "wss", 1) + "/v1/stream"
    with open_websocket(url, own) as connection:
        connection.send(json.dumps(BODY))
        assert json.loads(connection.recv(60))["label"] in LABELS
    assert grpc_is_live(grpc_address(certified[1]), authority, "client")


def test_a_certificate_of_another_authority_is_refused(
    certified: Running, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    stranger.sign("client", into="stranger")
    for suffix in ("pem", "key"):
        (authority.folder / f"stranger.{suffix}").write_bytes(
            (stranger.folder / f"stranger.{suffix}").read_bytes()
        )
    with (
        httpx.Client(
            base_url=certified[0].base_url, verify=context(authority, "stranger")
        ) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get("/livez")
    assert not grpc_is_live(grpc_address(certified[1]), authority, "stranger")


def test_a_weak_client_certificate_is_refused_over_http_and_over_grpc(
    certified: Running, authority: Authority
) -> None:
    client, application = certified
    authority.sign("weak", rsa.generate_private_key(65537, 1024))
    files = [(authority.folder / f"weak.{end}").read_bytes() for end in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *files)
    requests = iter([proto.ModelInferRequest(model_name="question")])
    with grpc.secure_channel(grpc_address(application), credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for call in (
            lambda: stub.ServerMetadata(proto.ServerMetadataRequest()),
            lambda: list(stub.ModelStreamInfer(requests)),
        ):
            with pytest.raises(grpc.RpcError, match="certificate is too weak") as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    weak = context(authority)
    weak.set_ciphers("ALL:@SECLEVEL=0")
    weak.load_cert_chain(authority.folder / "weak.pem", authority.folder / "weak.key")
    with (
        httpx.Client(base_url=client.base_url, verify=weak) as other,
        pytest.raises(httpx.TransportError),
    ):
        other.get("/v1/models")
