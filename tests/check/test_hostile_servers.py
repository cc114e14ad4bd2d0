"""Servers that break HTTP, never answer or never end are named in one line, before long."""

import json
from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from sruserve.check.address import Address
from sruserve.check.errors import CheckError, NoAnswer, Refused
from sruserve.check.findings import Verdict
from sruserve.check.transport import Access, Transport
from sruserve.cli import app
from tests.check.conftest import Examine, findings
from tests.check.fakes import FakeServer, StreamServer, TensorServer, running
from tests.check.hostile import Answer, answering, is_silent, repeats, says

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says(b""), "closed the connection"),
        (says(b"\x00\xff garbage\r\n\r\n"), "broke HTTP"),
        (says(OK + b"\r\n<html>"), "is not JSON but '<html>'"),
        (says(OK + b"\r\n" + b"[" * 100_000), "is not JSON"),
        (says(OK + b'\r\n{"data": 1}'), "no protocol"),
        (says(OK + b'content-length: 100\r\n\r\n{"data":'), "closed the connection within"),
        (says(CHUNKED + b"5\r\n[1"), "broke HTTP"),
        (says(CHUNKED + b"zz\r\n"), "broke HTTP"),
        (says(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.2/\r\n\r\n"), "no protocol"),
        (says(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"), "SRUSERVE_CHECK_API_KEY"),
        (is_silent, "within 0.5 s; raise --timeout"),
        (repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01), "within 0.5 s"),
        (repeats(OK, b"x: y\r\n"), "broke HTTP"),
        (repeats(OK, b"x", 0.01), "within 0.5 s"),
        (repeats(OK + b"\r\n", b" ", 0.01), "within 0.5 s"),
        (repeats(CHUNKED, b"1\r\n \r\n", 0.01), "within 0.5 s"),
    ],
    ids=[
        "closes", "no HTTP", "HTML", "deep JSON", "no list", "cut", "cut chunk", "bad chunk",
        "redirects", "no key", "silent", "continues", "endless headers", "slow header",
        "slow body", "slow chunks",
    ],
)  # fmt: skip
def test_a_broken_server_ends_the_command_with_one_line(answer: Answer, reason: str) -> None:
    timeout = "0.5" if "within 0.5 s" in reason else "600"
    with answering(answer) as url:
        done = CliRunner().invoke(app, ["check", url, "--timeout", timeout])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert reason in done.stderr
    assert done.stderr.count("\n") == 2  # what was announced, and the error


def test_endless_bytes_are_read_up_to_a_bound() -> None:
    access = Access(timeout_seconds=600, max_reply_bytes=1 << 20)
    with (
        answering(repeats(OK + b"\r\n", b" " * 65536)) as url,
        pytest.raises(NoAnswer, match="exceeds 1 MiB"),
    ):
        Transport(Address.parse(url), access, 1).get("/")


def test_a_server_that_nobody_runs_is_unreachable() -> None:
    with running(FakeServer()) as server:
        url = server.url
    done = CliRunner().invoke(app, ["check", url])
    assert done.exit_code == 2
    assert "cannot connect" in done.stderr
    assert "check the address" in done.stderr


def test_a_redirect_is_not_followed_so_that_no_other_server_gets_the_key(examine: Examine) -> None:
    with running(TensorServer()) as other:
        location = f"location: {other.url}/v2/repository/index\r\n".encode()
        with (
            answering(says(b"HTTP/1.1 307 Moved\r\n" + location + b"\r\n")) as url,
            pytest.raises(Refused, match=f"redirects to {other.url}"),
        ):
            examine(url, protocol="openai", key="a-secret")
        assert other.sent == []


class Failing(TensorServer):
    """Answers alone, and fails in company. status: of the reply."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path.endswith("/infer") and self.awaited() > 1:
            return self.status, {"error": {"message": "out of \x1b[31mmemory"}}
        return super().answer(method, path, body)


def test_a_server_that_fails_under_load_leaves_a_check_without_an_answer(examine: Examine) -> None:
    with running(Failing(500)) as server:
        outcome = examine(server.url)
    finding = findings(outcome)["company"]
    assert finding.verdict is Verdict.NO_ANSWER
    assert "500: out of \\x1b[31mmemory" in finding.reason
    assert outcome.exit_code == 2


class PutOff(TensorServer):
    """Puts off every second request once."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def answer(self, method: str, path: str, body: Any) -> Any:
        self.calls += 1
        if path.endswith("/infer") and self.calls % 4 == 0:
            return 503, {"error": "busy"}
        return super().answer(method, path, body)


def test_a_server_that_puts_requests_off_is_asked_again(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sruserve.check.transport._wait_seconds", lambda after: 0.01)
    with running(PutOff()) as server:
        assert findings(examine(server.url))["company"].verdict is Verdict.PASSES


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": [{"id": 5, "owned_by": "sruserve"}]}, "no str 'id'"),
        ({"data": [5]}, "other than objects"),
        ({"data": [{"id": "a" * 5000}, {"id": "b"}]}, "several models"),
    ],
)
def test_replies_of_another_shape_are_named(
    examine: Examine, wrong: dict[str, Any], message: str
) -> None:
    content = json.dumps(wrong).encode()
    reply = OK + b"content-length: %d\r\n\r\n" % len(content) + content
    with answering(says(reply)) as url, pytest.raises(CheckError, match=message) as raised:
        examine(url)
    assert len(str(raised.value)) <= 2000


class Odd(StreamServer):
    """sruserve's protocol, with a field of another kind in the replies to a path.

    task: of the model. inputs: its only input's name.
    """

    def __init__(self, path: str, fields: dict[str, Any], task: str, inputs: str) -> None:
        super().__init__()
        self.path, self.fields, self.task, self.inputs = path, fields, task, inputs

    def answer(self, method: str, path: str, body: Any) -> Any:
        entry = {"id": "sum", "owned_by": "sruserve", "task": self.task, "streams": True}
        replies: dict[str, Any] = {
            "/v1/models": entry,
            "/v2/models/sum": {"name": self.inputs, "datatype": "BYTES", "shape": [-1, 1]},
            "/v2/models/sum/config": {"max_batch_size": 8},
            "/v1/translate": {"text": "a"},
            "/v1/completions": {"text": "a", "index": 0},
        }
        if path not in replies:
            return super().answer(method, path, body)
        reply = replies[path] | (self.fields if path == self.path else {})
        if path == "/v1/completions" and body.get("stream"):
            return {"events": [{"choices": [reply]}]}
        count = len(body["input"]) if path == "/v1/translate" and type(body["input"]) is list else 1
        names = {
            "/v1/models": "data", "/v2/models/sum": "inputs", "/v1/completions": "choices",
            "/v1/translate": "results",
        }  # fmt: skip
        return {names[path]: [reply] * count} if path in names else reply


@pytest.mark.parametrize(
    ("path", "fields", "task", "inputs"),
    [
        ("/v1/models", {"id": "\ud800"}, "classify", "text"),
        ("/v1/models", {"vocab_size": 0}, "classify", "input_ids"),
        ("/v1/models", {}, "generate", "features"),
        ("/v2/models/sum/config", {"input": 5}, "classify", "text"),
        ("/v2/models/sum/config", {"input": [{"name": ["x"], "optional": True}]}, "tag", "text"),
        ("/v1/translate", {"text": 5}, "translate", "text"),
        ("/v1/completions", {"token_ids": 5}, "generate", "text"),
    ],
)
def test_odd_fields_of_replies_end_in_findings_or_an_error_of_ours(
    examine: Examine, path: str, fields: dict[str, Any], task: str, inputs: str
) -> None:
    with running(Odd(path, fields, task, inputs)) as server, suppress(CheckError):
        examine(server.url, model=fields.get("id", "sum"))


@pytest.mark.parametrize("field", ["output", "input"])
def test_names_of_tensors_that_are_no_texts_are_no_names(examine: Examine, field: str) -> None:
    class Named(TensorServer):
        def answer(self, method: str, path: str, body: Any) -> Any:
            if path.endswith("/config"):
                return {"max_batch_size": 8, field: [{"name": ["y"], "optional": True}]}
            return super().answer(method, path, body)

    with running(Named()) as server:
        assert findings(examine(server.url))["company"].verdict is Verdict.PASSES
