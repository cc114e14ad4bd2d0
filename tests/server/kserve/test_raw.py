"""The protocol byte by byte: bodies that other clients send, and bodies that nobody should."""

import gzip
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.conftest import Serve

INFER = "/v2/models/question/infer"
LENGTH = "inference-header-content-length"


def header(**options: Any) -> dict[str, Any]:
    """A JSON header of one text."""
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES"} | options
    return {"inputs": [tensor]}


def binary_body(*texts: bytes, **changes: Any) -> tuple[bytes, int]:
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    parameters = {"binary_data_size": len(data)}
    head = header(shape=[len(texts), 1], parameters=parameters) | changes
    encoded = json.dumps(head).encode()
    return encoded + data, len(encoded)


def post(client: httpx.Client, body: bytes, length: Any = None, **headers: str) -> httpx.Response:
    if length is not None:
        headers[LENGTH] = str(length)
    return client.post(INFER, content=body, headers=headers)


def error(reply: httpx.Response, status: int = 400) -> str:
    """The text of an error, whose shape is checked."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    return str(body["error"])


def scores(reply: httpx.Response) -> list[float]:
    assert reply.status_code == 200, reply.text
    (values,) = [each["data"] for each in reply.json()["outputs"] if each["name"] == "scores"]
    return list(values)


def test_numbers_in_json_are_float32_to_the_last_bit(client: httpx.Client) -> None:
    reply = post(client, json.dumps(header(data=["How far is it"])).encode())
    assert reply.headers["content-type"] == "application/json"
    parsed = np.array(scores(reply), np.float32)
    assert parsed.astype(np.float64).tolist() == scores(reply)
    body = {"model": "question", "input": "How far is it"}
    (result,) = client.post("/v1/classify", json=body).json()["results"]
    assert list(result["scores"].values()) == scores(reply)


def test_nested_and_flat_data_are_the_same(client: httpx.Client) -> None:
    flat = post(client, json.dumps(header(data=["who", "is it"], shape=[2, 1])).encode())
    nested = post(client, json.dumps(header(data=[["who"], ["is it"]], shape=[2, 1])).encode())
    assert scores(flat) == scores(nested)
    mixed = post(client, json.dumps(header(data=[["who"], "is it"], shape=[2, 1])).encode())
    assert "mixes lists and values: send a flat list" in error(mixed)
    more = post(client, json.dumps(header(data=[["who"], ["is it"], []], shape=[2, 1])).encode())
    assert "of 2 elements, but 3 elements were sent: correct one" in error(more)


def test_a_binary_reply_has_its_tensors_in_the_order_of_its_json(client: httpx.Client) -> None:
    body, length = binary_body(b"who", b"is it", parameters={"binary_data_output": True})
    reply = post(client, body, length)
    assert reply.headers["content-type"] == "application/octet-stream"
    head = json.loads(reply.content[: int(reply.headers[LENGTH])])
    sizes = [each["parameters"]["binary_data_size"] for each in head["outputs"]]
    assert len(reply.content) == int(reply.headers[LENGTH]) + sum(sizes)
    last = np.frombuffer(reply.content[-sizes[-1] :], "<f4")
    expected = scores(
        post(client, json.dumps(header(data=["who", "is it"], shape=[2, 1])).encode())
    )
    assert last.tolist() == expected


def test_a_body_without_json_is_the_only_input(client: httpx.Client) -> None:
    expected = scores(post(client, json.dumps(header(data=["who is it"])).encode()))
    assert scores(post(client, b"who is it", 0)) == expected
    rows = np.linspace(-1, 1, 24, dtype="<f4").reshape(3, 8)
    reply = client.post("/v2/models/sensor/infer", content=rows.tobytes(), headers={LENGTH: "0"})
    body = {"model": "sensor", "features": rows.tolist()}
    (result,) = client.post("/v1/classify", json=body).json()["results"]
    assert scores(reply) == list(result["scores"].values())
    short = client.post("/v2/models/sensor/infer", content=b"12345", headers={LENGTH: "0"})
    assert "a multiple of 32 bytes" in error(short)


def test_every_truncation_of_a_binary_body_is_refused(client: httpx.Client) -> None:
    body, length = binary_body(b"How far", b"who", "Größe".encode())
    assert post(client, body, length).status_code == 200
    for end in range(len(body)):
        error(post(client, body[:end], length))
        error(post(client, body[:end], min(length, end)))
    assert "unexpected additional input data" in error(post(client, body + b"x", length))


@given(junk=st.binary(max_size=40), length=st.integers(0, 60))
@settings(max_examples=60)
def test_junk_is_never_more_than_a_mistake(client: httpx.Client, junk: bytes, length: int) -> None:
    body, head = binary_body(b"How far", b"who")
    for content, header_length in ((junk, length), (body[:head] + junk, head), (junk + body, head)):
        reply = post(client, content, header_length)
        assert reply.status_code in (200, 400), reply.text


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ([], "must be a JSON object"),
        ({}, "'inputs' is missing"),
        ({"inputs": []}, "expected 1 inputs but got 0 inputs for model 'question'"),
        ({"inputs": [{"name": "text"}]}, "missing"),
        (header(data=["a"], shape=[2, 1]), "of 2 elements, but 1 elements were sent"),
        (header(data=["a"], shape=[-1, 1]), "greater than or equal to 0"),
        (header(data=["a"], shape=[2**62] * 16), "too many elements, but 1 elements were sent"),
        (header(data=["a"], shape=[1] * 17), "at most 16 items"),
        (header(data=["a"], shape=[1, "1"]), "integer"),
        (header(data=[1]), "not of data-type BYTES"),
        (header(data=[None]), "not of data-type BYTES"),
        (header(data="a"), "must be a valid array"),
        (header(data=[]), "of 1 elements, but 0 elements were sent"),
        (header(data=[], shape=[0, 1]), "batch-size must be <= 1024"),
        (header(), "needs either 'data' or 'binary_data_size'"),
        (header(data=["a"], parameters={"binary_data_size": 9}), "exceeds the body: send"),
        (header(data=["a"], parameters={"binary_data_size": -1}), "exceeds the body: send"),
        (header(data=["a"], parameters={"binary_data_size": "1"}), "exceeds the body: send"),
        (header(data=["a"], parameters={"shared_memory_region": "x"}), "in shared memory"),
        (header(data=["a"], datatype="STRING"), "unknown data-type 'STRING'"),
        (header(data=[1], datatype="INT64"), "data-type is 'INT64', but model 'question' expects"),
        (header(data=[2**70], datatype="INT64"), "beyond INT64's range"),
        (header(data=[1.5], datatype="INT64"), "not of data-type INT64"),
        (header(data=[True], datatype="FP32"), "not of data-type FP32"),
        ({"inputs": header(data=["a"])["inputs"] * 2}, "expected 1 inputs but got 2"),
        (header(data=["a"]) | {"outputs": [{"name": "label"}] * 2}, "requested twice"),
        (header(data=["a"]) | {"outputs": [
            {"name": "label", "parameters": {"shared_memory_region": "a"}}]}, "in shared memory"),
        (header(data=["a"], parameters={str(i): 1 for i in range(101)}), "at most 100"),
        (header(data=["a"]) | {"id": 7}, "'id' must be a valid string"),
        (header(data=["a"]) | {"parameters": {"sequence_id": -1}}, "from 0 to 2^64 - 1"),
        (header(data=["a"]) | {"parameters": {"sequence_id": 2**64}}, "from 0 to 2^64 - 1"),
        (header(data=["a"]) | {"parameters": {"sequence_id": 1.5}}, "a number or a text"),
        (header(data=["a"]) | {"parameters": {"sequence_id": "a" * 129}}, "128 characters"),
        (header(data=["a"]) | {"parameters": {"sequence_start": 1}}, "must be true or false"),
        (header(data=["a"]) | {"parameters": {"sru_step": 1}}, "needs a 'sequence_id'"),
        (header(data=["a"]) | {"parameters": {"timeout": -1}}, "'timeout' must be microseconds"),
        (header(data=["a"]) | {"parameters": {"sru_state": 3}}, "'state' must be"),
        (header(data=["a"]) | {"parameters": {"more": True}}, "unknown parameter 'more'"),
        (header(data=["a"]) | {"inptus": []}, "did you mean 'inputs'?"),
        (header(data=["a"]) | {"outputs": [
            {"name": "label", "parameters": {"classification": 2}}]}, "'classification'"),
        (header(data=["a"]) | {"outputs": [
            {"name": "scores", "parameters": {"classification": -2}}]}, "'classification'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_header_is_explained(client: httpx.Client, head: Any, message: str) -> None:
    assert message in error(post(client, json.dumps(head).encode()))


def test_json_that_is_nested_deeply_is_refused(client: httpx.Client) -> None:
    for depth in (100, 5_000, 100_000):
        nested = "[" * depth + "]" * depth
        text = json.dumps(header(data=["@"])).replace('"@"', nested)
        assert error(post(client, text.encode()))
    deep = "[" * 50 + '"who"' + "]" * 50
    assert scores(post(client, json.dumps(header(data=["@"])).replace('"@"', deep).encode()))


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 30, "", "٣", "10000"])
def test_a_wrong_header_length_is_explained(client: httpx.Client, length: str) -> None:
    headers = [(LENGTH.encode(), length.encode())]
    reply = client.post(INFER, content=b"{}", headers=headers)
    assert "Inference-Header-Content-Length" in error(reply)


def test_text_that_is_not_utf8_is_refused(client: httpx.Client) -> None:
    body, length = binary_body(b"\xff\xfe")
    assert "not UTF-8" in error(post(client, body, length))
    assert "not UTF-8" in error(post(client, b"\xff", 0))
    assert "valid JSON" in error(post(client, json.dumps(header(data=["\ud800"])).encode()))


def test_numbers_that_are_not_finite_are_refused(client: httpx.Client) -> None:
    tensor: dict[str, Any] = {"name": "features", "shape": [1, 8], "datatype": "FP32"}
    for bad in (1e39, float("inf"), float("nan")):
        body = json.dumps({"inputs": [{**tensor, "data": [bad] * 8}]}).encode()
        error(client.post("/v2/models/sensor/infer", content=body))
    raw = np.full(8, np.nan, "<f4").tobytes()
    reply = client.post("/v2/models/sensor/infer", content=raw, headers={LENGTH: "0"})
    assert "not finite" in error(reply)


def test_a_packed_body_is_bounded_by_what_is_in_it(serve: Serve) -> None:
    with serve("question", max_body_bytes=4096, max_input_bytes=4096) as (client, _):
        bomb = json.dumps(header(data=["who " * (1 << 20)])).encode()
        for packed, name in ((gzip.compress(bomb), "gzip"), (zlib.compress(bomb), "deflate")):
            small = packed[:4000]  # what is left out would never be read
            assert "longer than 4096 bytes" in error(
                post(client, small, **{"content-encoding": name}), 413
            )
        fits = json.dumps(header(data=["who "])).encode().ljust(4096)
        assert scores(post(client, gzip.compress(fits), **{"content-encoding": "gzip"}))
        over = gzip.compress(fits + b" ")
        error(post(client, over, **{"content-encoding": "gzip"}), 413)
        error(post(client, fits + b" "), 413)


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_a_packed_body_that_is_broken_is_refused(client: httpx.Client, name: str) -> None:
    body = json.dumps(header(data=["who"])).encode()
    packed = gzip.compress(body) if name == "gzip" else zlib.compress(body)
    encoding = {"content-encoding": name}
    expected = scores(post(client, body))
    assert scores(post(client, packed, **encoding)) == expected
    for end in range(len(packed)):
        error(post(client, packed[:end], **encoding))
    error(post(client, packed + b"x", **encoding))
    error(post(client, body, **encoding))
    other = post(client, body, **{"content-encoding": "br"})
    assert "use gzip or deflate" in error(other, 415)
    assert scores(post(client, body, **{"content-encoding": ""}))


def test_replies_are_packed_only_where_it_pays_and_is_wanted(client: httpx.Client) -> None:
    long = json.dumps(header(data=["who"] * 50, shape=[50, 1])).encode()
    short = json.dumps(header(data=["who"])).encode()

    def encoding(body: bytes, accepted: str) -> str:
        reply = post(client, body, **{"accept-encoding": accepted})
        assert scores(reply)
        return str(reply.headers.get("content-encoding", "none"))

    assert encoding(long, "br, deflate;q=0.5, gzip") == "deflate"
    assert encoding(long, "gzip;q=0, deflate; q=0.0, identity") == "none"
    assert encoding(long, "gzip") == "gzip"
    assert encoding(long, "gzip" + 252 * ",") == "gzip"
    assert encoding(long, "gzip" + 253 * ",") == "none"
    assert encoding(short, "gzip") == "none"


def test_paths_and_methods_that_do_not_exist(client: httpx.Client) -> None:
    for path in ("/v2/", "/v2/nothing", "/v2/models", "/v2/models/question/versions",
                 "/v2/models/question/versions/1/nothing", "/v2//infer"):  # fmt: skip
        error(client.get(path), 404)
    error(client.get(INFER), 405)
    error(client.post("/v2"), 405)
    error(client.post("/v2/health/live"), 405)
    error(client.get("/v2/repository/index"), 405)
    error(client.post("/v2/repository/nothing", content=b""), 404)
    assert "valid JSON" in error(client.post("/v2/repository/index", content=b"{"))
    error(client.post("/v2/repository/index", json={"ready": 1}))


def test_keys_are_requested_but_not_by_probes(serve: Serve, folders: Path) -> None:
    del folders
    with serve("question", api_keys="acme:key-of-acme") as (client, _):
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/question/ready"):
            assert client.get(path).status_code == 200
        body = json.dumps(header(data=["who"])).encode()
        for reply in (client.get("/v2"), post(client, body), client.get("/v2/models/question")):
            assert "API key" in error(reply, 401)
        known = {"authorization": "Bearer key-of-acme"}
        assert scores(post(client, body, **known))
        assert client.get("/v2", headers=known).status_code == 200
