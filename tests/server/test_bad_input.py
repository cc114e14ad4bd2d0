"""Whatever a client sends, it gets a clear error with a stable code, and the server goes on."""

import gzip
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.posting import CLASSIFY, COMPLETE, SCORE, post, refusal
from tests.server.websocket.sockets import SECONDS, open_socket

NOT_A_NUMBER = float("nan")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CLASSIFY, {"input": ""}, "input"),
        (CLASSIFY, {"input": "", "more": True}, "input"),
        (CLASSIFY, {"input": []}, "input"),
        (CLASSIFY, {"input": ["a", ""]}, "input"),
        (CLASSIFY, {"input": [[1], []]}, "input"),
        (CLASSIFY, {"input": " \n "}, "input"),
        (CLASSIFY, {"model": "sensor", "features": []}, "features"),
        (COMPLETE, {"prompt": ""}, "prompt"),
        (COMPLETE, {}, "prompt"),
        (COMPLETE, {"prompt": ["a", ""]}, "prompt"),
        (SCORE, {"input": ""}, "input"),
    ],
)
def test_empty_input(client: httpx.Client, path: str, body: Any, param: str) -> None:
    refusal(post(client, path, body), 422, "empty_input", param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"input": "\xff\xfe"}',
        b'{"input": "\\ud800"}',
        b'{"input": "\\udc00 low"}',
        b"\xef\xbb\xbf{}",
        b'{"input": "a"} trailing',
        b"[" * 30_000,
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", [CLASSIFY, COMPLETE, SCORE])
def test_what_is_not_json_in_utf_8(client: httpx.Client, path: str, body: bytes) -> None:
    message = refusal(post(client, path, body), 400, "malformed_body")
    if b"\\u" in body or b"\xff" in body:
        assert "UTF-8" in message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CLASSIFY, b"[1]", None),
        (CLASSIFY, b"null", None),
        (CLASSIFY, {"input": 5}, "input"),
        (CLASSIFY, {"input": ["a", 5]}, "input"),
        (CLASSIFY, {"input": [1, True]}, "input"),
        (CLASSIFY, {"input": [1.5]}, "input"),
        (CLASSIFY, {"input": {"text": "a"}}, "input"),
        (CLASSIFY, {}, "input"),
        (CLASSIFY, {"input": "a", "more": "yes"}, "more"),
        (CLASSIFY, {"input": "a", "return_state": 1}, "return_state"),
        (CLASSIFY, {"model": 3, "input": "a"}, "model"),
        (CLASSIFY, {"input": "a", "state": 3}, "state"),
        (CLASSIFY, {"input": [-1]}, "input"),
        (CLASSIFY, {"input": [16]}, "input"),
        (CLASSIFY, {"input": [10**30]}, "input"),
        (CLASSIFY, {"features": [[1.0]]}, "features"),
        (CLASSIFY, {"model": "sensor", "input": "a"}, "input"),
        (CLASSIFY, {"model": "sensor", "input": [1]}, "input"),
        (CLASSIFY, {"model": "sensor", "features": [[1.0] * 7]}, "features"),
        (CLASSIFY, {"model": "sensor", "features": [[1.0] * 8, [1.0]]}, "features"),
        (CLASSIFY, {"model": "sensor", "features": [["1"] * 8]}, "features"),
        (CLASSIFY, {"model": "sensor", "features": [[1.0] * 8], "input": "a"}, "features"),
        (CLASSIFY, {"input": "a", "extra": 1}, "extra"),
        (SCORE, {"input": "a", "inptu": 1}, "inptu"),
        (SCORE, {}, "input"),
        (COMPLETE, {"prompt": 5}, "prompt"),
        (COMPLETE, {"prompt": "a", "temprature": 1}, "temprature"),
        (COMPLETE, {"model": "ids", "prompt": "text"}, "prompt"),
        (COMPLETE, {"model": "ids", "prompt": [50]}, "prompt"),
    ],
)
def test_wrong_types_and_unknown_fields(
    client: httpx.Client, path: str, body: Any, param: str | None
) -> None:
    message = refusal(post(client, path, body), 422, "invalid_request", param)
    assert "_" not in message.split("'")[0]  # said in words, not in pydantic's types


def test_a_wrong_input_gets_the_error_of_the_documentation(client: httpx.Client) -> None:
    shapes = client.get("/openapi.json").json()["components"]["schemas"]["ScoreRequest"]
    description = shapes["properties"]["input"]["description"].lower().removesuffix(".")
    for path, field in ((CLASSIFY, "input"), (CLASSIFY, "pair"), (COMPLETE, "prompt")):
        message = refusal(post(client, path, {field: 5}), 422, "invalid_request", field)
        assert message == f"'{field}' must be {description}"


@pytest.mark.parametrize("path", [CLASSIFY, COMPLETE, SCORE])
def test_an_empty_body_is_named_as_such(client: httpx.Client, path: str) -> None:
    message = refusal(post(client, path, b""), 400, "malformed_body")
    assert (
        message
        == "the request is empty; send a JSON object with the fields that its documentation lists"
    )


def test_a_missing_field_is_named_together_with_an_unknown_one(client: httpx.Client) -> None:
    message = refusal(post(client, SCORE, {"inputs": "a"}), 422, "invalid_request", "input")
    assert message == "'input' is missing; unknown field 'inputs'; did you mean 'input'?"
    frame = {"type": "json_schema", "json_schema": {}}
    reply = post(client, COMPLETE, {"prompt": "a", "response_format": frame})
    message = refusal(reply, 422, "invalid_request", "response_format")
    assert message == "'response_format.json_schema.schema' is missing"


@pytest.mark.parametrize("name", ["text", "texts", "sentence", "sentences", "prompt"])
def test_a_text_under_another_name_gets_the_name_to_send_it_as(
    client: httpx.Client, name: str
) -> None:
    advice = f"unknown field '{name}'; send the text as 'input'"
    message = refusal(post(client, CLASSIFY, {name: "a"}), 422, "invalid_request", name)
    assert message == advice
    message = refusal(post(client, SCORE, {name: "a"}), 422, "invalid_request", "input")
    assert message == f"'input' is missing; {advice}"


@pytest.mark.parametrize("name", ["text", "texts", "sentence", "sentences", "input", "inputs"])
def test_a_prompt_under_another_name_gets_the_name_to_send_it_as(
    client: httpx.Client, name: str
) -> None:
    message = refusal(post(client, COMPLETE, {name: "a"}), 422, "invalid_request", name)
    assert message == f"unknown field '{name}'; send the text as 'prompt'"


def test_a_step_and_a_frame_get_the_name_to_send_a_text_as(client: httpx.Client) -> None:
    stream = post(client, "/v1/streams", {"model": "question"}).json()["id"]
    reply = post(client, f"/v1/streams/{stream}/steps", {"step": 1, "text": "a"})
    message = refusal(reply, 422, "invalid_request", "text")
    assert message == "unknown field 'text'; send the text as 'input'"
    with open_socket(client) as socket:
        socket.send('{"model": "question", "text": "a"}')
        assert "unknown field 'text'; send the text as 'input'" in str(socket.recv(SECONDS))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_tokens", "9", "an integer from 0 to 2147483647"),
        ("max_tokens", 1.5, "an integer from 0 to 2147483647"),
        ("max_tokens", -1, "from 0 to 2147483647"),
        ("max_tokens", 1 << 31, "from 0 to 2147483647"),
        ("min_tokens", -1, "from 0 to 2147483647"),
        ("temperature", 11, "from 0 to 10"),
        ("top_p", 0, "above 0, at most 1"),
        ("n", 129, "from 1 to 128"),
        ("seed", 1.5, ""),
        ("timeout_ms", 0, "from 1 to 2147483648"),
        ("priority", 1001, "from -1000 to 1000"),
    ],
)
def test_a_number_out_of_range_gets_the_range(
    client: httpx.Client, name: str, value: object, allowed: str
) -> None:
    reply = post(client, COMPLETE, {"prompt": "a", name: value})
    message = refusal(reply, 422, "invalid_request", name)
    assert message.startswith(f"'{name}' must be {allowed}")


@pytest.mark.parametrize(("n", "each"), [(1, ""), (2, " for each of 2 completions")])
def test_too_many_tokens_are_named_with_the_limit_and_its_setting(
    client: httpx.Client, n: int, each: str
) -> None:
    body = {"prompt": "a", "max_tokens": 100_001, "n": n}
    message = refusal(post(client, COMPLETE, body), 422, "invalid_request", "max_tokens")
    assert message.startswith(f"'max_tokens' is 100001{each}, over the limit of 100000")
    assert message.endswith("raise SRUSERVE_MAX_NEW_TOKENS")


def test_a_misspelt_field_gets_a_suggestion(client: httpx.Client) -> None:
    reply = post(client, COMPLETE, {"prompt": "a", "temprature": 1})
    assert "did you mean 'temperature'?" in refusal(reply, 422, "invalid_request", "temprature")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 11),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 11),
        ("n", 0),
        ("n", 129),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("max_tokens", -1),
        ("max_tokens", 10**9),
        ("min_tokens", -1),
        ("seed", 1.5),
        ("seed", "x"),
        ("seed", 1e30),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("stop", "a" * 257),
        ("stop", [1]),
        ("stream", "yes"),
        ("suffix", "x"),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {str(i): 0 for i in range(1025)}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [10**6]),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -3),
        ("regex", 5),
        ("json_schema", "object"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
    ],
)
def test_out_of_range_sampling_values(client: httpx.Client, name: str, value: Any) -> None:
    reply = post(client, COMPLETE, {"prompt": "a", name: value})
    message = refusal(reply, 422, "invalid_request", name)
    assert name in message


@pytest.mark.parametrize("name", ["top_k", "max_tokens", "min_tokens", "n", "best_of", "logprobs"])
@pytest.mark.parametrize("value", [2**31, 10**20], ids=["32 bits", "64 bits"])
def test_integers_beyond_all_bounds_touch_nobody_else(
    client: httpx.Client, name: str, value: int
) -> None:
    body = {"prompt": "To be", "max_tokens": 300, "seed": 4}
    alone = post(client, COMPLETE, body).json()["choices"]
    bad = {"prompt": "a", "max_tokens": 300, name: value}
    with ThreadPoolExecutor(2) as pool:
        bystander = pool.submit(post, client, COMPLETE, body)
        refusal(pool.submit(post, client, COMPLETE, bad).result(), 422, "invalid_request", name)
        assert bystander.result().json()["choices"] == alone


@pytest.mark.parametrize(
    "body",
    [
        {"best_of": 3, "n": 2},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"state_interval": 10}},
        {"regex": "a", "json_schema": {}},
        {"regex": "a", "response_format": {"type": "json_object"}},
        {"min_tokens": 5, "max_tokens": 4},
        {"min_tokens": 17, "max_tokens": None},
        {"min_tokens": 17},
    ],
)
def test_values_that_do_not_fit_together(client: httpx.Client, body: Any) -> None:
    refusal(post(client, COMPLETE, {"prompt": "a"} | body), 422, "invalid_request")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1e39"])
def test_numbers_that_are_not_finite(client: httpx.Client, value: str) -> None:
    features = ("[" + ",".join(["0.5"] * 7 + [value]) + "]").encode()
    body = b'{"model":"sensor","features":[' + features + b"]}"
    refusal(client.post(CLASSIFY, content=body), 422, "not_finite", "features")
    if value != "1e39":
        body = b'{"model":"characters","prompt":"a","temperature":' + value.encode() + b"}"
        refusal(client.post(COMPLETE, content=body), 422, "not_finite", "temperature")


def test_an_unknown_model_and_one_for_another_task(client: httpx.Client) -> None:
    message = refusal(
        post(client, CLASSIFY, {"model": "absent", "input": "a"}), 404, "model_not_found", "model"
    )
    assert "question" in message
    for path, model in ((CLASSIFY, "characters"), (COMPLETE, "question"), (SCORE, "question")):
        body = {"model": model, "input" if path != COMPLETE else "prompt": "a"}
        refusal(post(client, path, body), 422, "wrong_task", "model")


def test_a_model_that_could_be_several_must_be_named(client: httpx.Client) -> None:
    reply = client.post(CLASSIFY, json={"input": "a"})
    assert "question" in refusal(reply, 422, "invalid_request", "model")


def test_text_outside_of_the_vocabulary_of_bytes(client: httpx.Client) -> None:
    reply = post(client, SCORE, {"input": "tab\t"})
    assert "0x09" in refusal(reply, 422, "invalid_text", "input")
    reply = post(client, COMPLETE, {"prompt": "tab\t"})
    assert "0x09" in refusal(reply, 422, "invalid_text", "prompt")


@pytest.mark.parametrize("field", ["state", "return_state", "more"])
def test_a_bidirectional_model_asked_to_continue(client: httpx.Client, field: str) -> None:
    value = "x" if field == "state" else True
    reply = post(client, CLASSIFY, {"model": "whole", "input": "a", field: value})
    refusal(reply, 422, "cannot_stream", field)


def state_of(client: httpx.Client, model: str = "characters") -> str:
    body = {"model": model, "prompt": "To be", "max_tokens": 1, "return_state": True}
    state: str = client.post(COMPLETE, json=body).json()["choices"][0]["state"]
    return state


@pytest.mark.parametrize("path", [COMPLETE, SCORE])
def test_a_tampered_truncated_or_made_up_state(client: httpx.Client, path: str) -> None:
    state = state_of(client)
    middle = len(state) // 2
    other = "A" if state[middle] != "A" else "B"
    for bad in (state[:middle] + other + state[middle + 1 :], state[:-4], state[:-1], "", "x", "é"):
        body = {"input" if path == SCORE else "prompt": "a", "state": bad}
        refusal(post(client, path, body), 422, "state_tampered", "state")


def test_a_state_sent_to_another_model(client: httpx.Client) -> None:
    body = {"model": "other", "prompt": "a", "state": state_of(client)}
    refusal(post(client, COMPLETE, body), 422, "state_wrong_model", "state")


def test_a_state_of_another_server(client: httpx.Client, serve: Serve) -> None:
    with serve("characters", state_keys="b" * 64) as (foreign, _):
        refusal(
            post(client, COMPLETE, {"prompt": "a", "state": state_of(foreign)}),
            422, "state_unknown_key", "state",
        )  # fmt: skip


def test_an_expired_state(serve: Serve) -> None:
    clock = HandClock()
    with serve("characters", state_ttl_seconds=1000, clock=clock) as (client, _):
        state = state_of(client)
        body = {"prompt": "a", "state": state}
        clock.now += 999 - clock.now % 1
        assert post(client, COMPLETE, body).status_code == 200
        clock.now += 1
        refusal(post(client, COMPLETE, body), 410, "state_expired", "state")


def test_more_or_fewer_states_than_inputs(client: httpx.Client) -> None:
    state = state_of(client)
    body = {"input": ["a", "b"], "state": [state]}
    assert "2 inputs" in refusal(post(client, SCORE, body), 422, "invalid_request", "state")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/classify", 405, "method_not_allowed"),
        ("DELETE", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/nothing", 404, "route_not_found"),
        ("POST", "/v1/classify/", 404, "route_not_found"),
        ("GET", "/v1/models/absent", 404, "model_not_found"),
        ("GET", "/docs/assets/../../etc/passwd", 404, "route_not_found"),
        ("GET", "/docs/assets/%2e%2e/%2e%2e/__init__.py", 404, "route_not_found"),
    ],
)
def test_wrong_paths_and_methods_have_the_same_shape(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    reply = client.request(method, path)
    refusal(reply, status, code, "model" if code == "model_not_found" else None)
    if status == 405:
        assert reply.headers["allow"] == ("GET, HEAD" if path == "/v1/models" else "POST")


def test_a_request_for_a_chat_is_sent_to_completions(client: httpx.Client) -> None:
    body = {"model": "characters", "messages": [{"role": "user", "content": "a"}]}
    reply = post(client, "/v1/chat/completions", body)
    message = refusal(reply, 404, "route_not_found", None)
    assert "chat is not supported: send a prompt to /v1/completions" in message


@pytest.mark.parametrize(
    "path",
    [CLASSIFY, COMPLETE, "/tokenize", "/v1/responses", "/v1/streams", "/v1/state"],
)
def test_a_packed_body_is_refused_by_the_name_of_its_header(
    client: httpx.Client, path: str
) -> None:
    packed = gzip.compress(b'{"model": "question", "input": "a"}')
    for coding in ("gzip", "GZIP", "br"):
        reply = client.post(path, content=packed, headers={"content-encoding": coding})
        assert "Content-Encoding" in refusal(reply, 415, "unsupported_media_type")
    for coding in ("identity", ""):
        reply = client.post(path, content=b"{", headers={"content-encoding": coding})
        assert reply.json()["error"]["code"] == "malformed_body"


def test_an_unforeseen_failure_tells_nothing_of_the_inside(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve("question") as (client, application):
        served = application.lifecycle.catalogue["question"]

        def broken(*_: Any) -> None:
            raise RuntimeError("secret path /home/me")

        with monkeypatch.context() as patch:
            patch.setattr(served.engine, "submit", broken)
            reply = post(client, CLASSIFY, {"input": "a"})
        assert "secret" not in refusal(reply, 500, "internal_error")
        assert "secret path" in caplog.text
        assert post(client, CLASSIFY, {"input": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "item"),
    [
        (SCORE, "input", "{}"),
        (SCORE, "input", "null"),
        (SCORE, "state", "0"),
        (COMPLETE, "prompt", '[0,""]'),
        (CLASSIFY, "features", "[{},{}]"),
    ],
)
def test_the_first_of_very_many_mistakes_is_reported(
    client: httpx.Client, path: str, field: str, item: str
) -> None:
    parts = max(1, item.count("[") + item.count("{"))
    items = ",".join([item] * (30_000 // parts))
    rest = "" if field in ("input", "prompt", "features") else ',"input":"a"'
    body = f'{{"{field}":[{items}]{rest}}}'.encode()
    refusal(post(client, path, body), 422, "invalid_request", field)


def test_very_many_unknown_fields_are_counted_but_not_explained(client: httpx.Client) -> None:
    body = {"input": "a"} | {f"k{i}": 0 for i in range(30_000)}
    assert "30000 errors" in refusal(post(client, SCORE, body), 422, "invalid_request")


@pytest.mark.parametrize("name", ["model", "mod\\u0065l"])
def test_of_two_fields_of_the_same_name_the_last_counts(client: httpx.Client, name: str) -> None:
    body = '{"model": "%s", "%s": "%s", "input": "who"}'
    reply = client.post(CLASSIFY, content=body % ("absent", name, "question"))
    assert reply.status_code == 200, reply.text
    reply = client.post(CLASSIFY, content=body % ("question", name, "absent"))
    refusal(reply, 404, "model_not_found", "model")


@pytest.mark.parametrize("split", [False, True], ids=["at once", "byte by byte"])
def test_an_offer_to_upgrade_is_ignored(client: httpx.Client, split: bool) -> None:
    body = b'{"model":"characters","input":"abc"}'
    request = (
        b"POST /v1/score HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        b"upgrade: h2c\r\nhttp2-settings: AAMAAABk\r\ncontent-length: %d\r\n\r\n%b"
    ) % (len(body), body)
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):  # the connection goes on in HTTP/1.1
            for part in [bytes([b]) for b in request] if split else [request]:
                connection.sendall(part)
            received = b""
            while b'"usage"' not in received:
                received += (chunk := connection.recv(65536))
                assert chunk
            assert received.startswith(b"HTTP/1.1 200")
