"""Ask a running server over HTTP what an operator's clients would, and check its answers."""

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

from deploy.build_image.shell import Failed

_QUESTION, _KIND = "Who wrote Hamlet?", "human"


def ask(port: int) -> Iterator[str]:
    """Yield a line for each question that was answered well; raises `Failed`."""
    for path in ("/livez", "/readyz"):
        expect(get(port, path)[0] == 200, path)
    yield "/livez and /readyz: 200"
    kinds = models(port)
    for task in ("classify", "generate"):
        expect(task in kinds, f"a model that can {task}")
    begin = time.perf_counter()
    reply = post(port, "/v1/classify", {"model": kinds["classify"], "input": _QUESTION})
    milliseconds = (time.perf_counter() - begin) * 1000
    (result,) = reply["results"]
    expect(result["label"] == _KIND, f"a classification: {reply}")
    yield f"{_QUESTION} {result['label']}, {result['score']:.4f}, in {milliseconds:.0f} ms"
    text, events = stream(port, kinds["generate"])
    expect(bool(text) and events > 1, f"a streamed completion: {events} events")
    yield f"a streamed completion: {len(text)} characters in {events} events"
    status, page = get(port, "/metrics")
    counted = [line for line in page.splitlines() if line.startswith("sru_requests_total{")]
    expect(status == 200 and any(line.endswith(" 1.0") for line in counted), "/metrics")
    expect('kernel="reference"' not in page, "the compiled kernel")
    yield f"/metrics: {len(page.splitlines())} lines, both requests counted"


def models(port: int) -> dict[str, str]:
    """By what a model can do, the first one that can."""
    names: dict[str, str] = {}
    for model in json.loads(get(port, "/v1/models")[1])["data"]:
        names.setdefault(model["task"], model["id"])
    return names


def stream(port: int, model: str) -> tuple[str, int]:
    """A completion, and the number of events that it came in."""
    body = {"model": model, "prompt": "To be", "max_tokens": 200, "stream": True, "seed": 1}
    status, content = request(port, "POST", "/v1/completions", body)
    events = [line[6:] for line in content.splitlines() if line.startswith("data: ")]
    expect(status == 200 and events[-1] == "[DONE]", f"/v1/completions: {content[-300:]}")
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    return "".join(texts), len(texts)


def get(port: int, path: str) -> tuple[int, str]:
    return request(port, "GET", path)


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    status, content = request(port, "POST", path, body)
    expect(status == 200, f"{path}: {content[:300]}")
    return json.loads(content)


def request(
    port: int, method: str, path: str, body: dict[str, Any] | None = None
) -> tuple[int, str]:
    """The status and the content of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(f"not as expected: {what}")
