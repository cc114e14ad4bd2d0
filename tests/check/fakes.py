"""Small servers whose faults a test chooses; with no fault, each answers exactly."""

import json
import select
import socket
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound="FakeServer")


class FakeServer(ThreadingHTTPServer):
    """Answers by method and path, a connection for each request.

    sent: the paths of all requests. peak_open: the largest number of connections that were open.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.peak_open = self.open = 0
        self._connections: set[socket.socket] = set()
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The reply's JSON, or a status and JSON; a list of JSON under "events" is streamed."""
        return 404, {"error": "there is nothing here"}

    def get_request(self) -> Any:
        with self.changed:  # no connection is between the queue and the count for `alone`
            accepted = super().get_request()
            self.open += 1
            self._connections.add(accepted[0])
            # A thread may not have noticed yet that its client has closed.
            open_now = len(self._connections) - sum(map(_is_closed, self._connections))
            self.peak_open = max(self.peak_open, open_now)
            self.changed.notify_all()
        return accepted

    def shutdown_request(self, request: Any) -> None:
        with self.changed:
            self.open -= 1
            self._connections.discard(request)
            self.changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about clients that left; any other error fails the test that waits."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def awaited(self) -> int:
        """The number of connections whose requests are here or on their way."""
        more, _, _ = select.select([self.socket], [], [], 0)
        return self.open + bool(more)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end of a connection has closed it, and sent nothing that is unread."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length) or "null")
        self.server.sent.append(f"{self.command} {self.path}")
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        answer = self.server.answer(self.command, self.path, body)
        status, reply = answer if isinstance(answer, tuple) else (200, answer)
        if isinstance(reply, dict) and "events" in reply:
            lines = [json.dumps(event) for event in reply["events"]]
            content = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
        else:
            content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, in a thread."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class BatchingServer(FakeServer):
    """Computes all requests that are there at the same time as one batch."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[dict[str, Any]] = []

    def compute(self, batch: list[Any]) -> list[Any]:
        """The results of a batch of inputs."""
        raise NotImplementedError

    def in_batch(self, value: Any) -> Any:
        """The result of an input, computed with all others that are here."""
        mine: dict[str, Any] = {"value": value}
        with self.changed:
            self._waiting.append(mine)
            self.changed.notify_all()
            while "result" not in mine:
                if len(self._waiting) == self.awaited():
                    batch, self._waiting = self._waiting, []
                    results = self.compute([each["value"] for each in batch])
                    for each, result in zip(batch, results, strict=True):
                        each["result"] = result
                    self.changed.notify_all()
                else:
                    self.changed.wait(0.05)
        return mine["result"]


class TensorServer(BatchingServer):
    """KServe v2: the mean of each column of an FP32 tensor, steps x 4.

    fault: "pads" means over the longest of the batch; "normalises" over the whole batch; "rounds"
    adds 1e-8 for each other of the batch; "drifts" adds 1 for each request before.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self._fault, self._drift = fault, 0

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v2":
            return {"name": "fake", "extensions": []}
        if path == "/v2/models/mean":
            return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1, 4]}]}
        if path == "/v2/models/mean/config":
            return {"max_batch_size": 8}
        if path == "/v2/repository/index":
            return [{"name": "mean", "state": "READY"}]
        if path != "/v2/models/mean/infer":
            return super().answer(method, path, body)
        (tensor,) = body["inputs"]
        _, steps, width = tensor["shape"]
        rows = [tensor["data"][i * width : (i + 1) * width] for i in range(steps)]
        means = self.in_batch(rows)
        return {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": means}]}

    def compute(self, batch: list[Any]) -> list[Any]:
        longest = max(map(len, batch))
        self._drift += self._fault == "drifts"
        means = []
        for rows in batch:
            steps = longest if self._fault == "pads" else len(rows)
            sums = [sum(column) for column in zip(*rows, strict=True)]
            extra = 1e-8 * (len(batch) - 1) if self._fault == "rounds" else self._drift
            means.append([total / steps + extra for total in sums])
        if self._fault == "normalises":
            shift = sum(sum(row) for row in means) / len(means)
            means = [[value - shift for value in row] for row in means]
        return means


class StuckServer(TensorServer):
    """Never answers two requests at the same time; `stuck` is set once it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck, self.over = threading.Event(), threading.Event()

    def compute(self, batch: list[Any]) -> list[Any]:
        if len(batch) > 1:
            self.stuck.set()
            self.changed.wait_for(self.over.is_set)
        return super().compute(batch)

    def end(self) -> None:
        """Answer after all."""
        self.over.set()
        with self.changed:
            self.changed.notify_all()


class CompletionServer(BatchingServer):
    """OpenAI's completions of random letters.

    fault: "load" draws with the size of the batch; "unseeded" ignores the seed; "greedy" always
    draws the same; "drops" leaves a letter out of the events; "logprobs" refuses that field;
    "tips" changes greedy texts with the size of the batch.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self._fault, self._requests = fault, 0
        self.prompts: set[str] = set()

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "letters", "object": "model"}]}
        if path != "/v1/completions":
            return super().answer(method, path, body)
        if self._fault == "logprobs" and "logprobs" in body:
            return 400, {"error": {"message": "logprobs are not supported"}}
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        self.prompts |= set(prompts)
        seed = body.get("seed", 0) if body["temperature"] else 0
        texts = self.in_batch((prompts, seed, body["max_tokens"]))
        if body.get("stream"):
            letters = texts[0][1:] if self._fault == "drops" else texts[0]
            return {"events": [{"choices": [_choice(0, letter)]} for letter in letters]}
        return {"choices": [_choice(i, text) for i, text in enumerate(texts)]}

    def compute(self, batch: list[Any]) -> list[Any]:
        texts = []
        for prompts, seed, count in batch:
            self._requests += 1
            key = {"greedy": 0, "unseeded": self._requests if seed else 0}.get(self._fault, seed)
            key += len(batch) if self._fault == ("load" if seed else "tips") else 0
            texts.append([_letters(prompt, key, count) for prompt in prompts])
        return texts


class SequenceServer(FakeServer):
    """KServe v2: a sum of characters in their order over the requests of a sequence.

    fault: "shared" keeps one sum for all sequences; "forgets" keeps none.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self._fault = fault
        self._sums: dict[int, int] = {}

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v2":
            return {"name": "fake", "extensions": ["sequence"]}
        if path == "/v2/models/sum":
            return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]}
        if path == "/v2/models/sum/config":
            return {"max_batch_size": 8, "sequence_batching": {"direct": {}}}
        if path != "/v2/models/sum/infer":
            return super().answer(method, path, body)
        place = body["parameters"]
        key = 0 if self._fault == "shared" else place["sequence_id"]
        with self.changed:
            anew = place["sequence_start"] or self._fault == "forgets"
            start = 1 if anew else self._sums[key]
            self._sums[key] = end = summed(start, body["inputs"][0]["data"][0])
        data = [end / 1_000_003]
        return {"outputs": [{"name": "sum", "datatype": "FP32", "shape": [1, 1], "data": data}]}


def _letters(prompt: str, key: int, count: int) -> str:
    codes = (zlib.crc32(f"{prompt} {key} {i}".encode()) for i in range(count))
    return "".join(chr(97 + code % 26) for code in codes)


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "length"}


class StreamServer(FakeServer):
    """sruserve's protocol for a model that sums up characters in their order.

    fault: "twice" applies a step that is sent again; "refuses" answers it with 409; "in place"
    changes a state that is continued; "shared" keeps one state for all streams; "forgets" begins
    anew with each chunk; "other" gives states that another server does not know; "races" applies a
    step twice if it is sent twice at once; "large" has states that no token holds;
    "crashes" fails at a step that is sent again; "tokens" holds no streams.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self._fault = fault
        self._states: dict[str, int] = {}
        self._streams: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> Any:
        with self._lock:
            if path == "/v1/models":
                entry = {"id": "sum", "owned_by": "sruserve", "task": "classify", "streams": True}
                return {"data": [entry]}
            if path == "/v2/models/sum":
                return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]}
            if path == "/v2/models/sum/config":
                return {"max_batch_size": 8}
            if path == "/v1/classify":
                return self._classify(body)
            if path == "/v1/streams" and self._fault == "tokens":
                return 501, {"error": {"message": "streams need Redis"}}
            if path == "/v1/streams":
                name = str(len(self._streams))
                self._streams[name] = {"value": 1, "step": 0, "reply": None}
                return {"id": name}
            if method == "DELETE":
                return {}
            if path.startswith("/v1/streams/"):
                return self._step(path.split("/")[3], body)
            return super().answer(method, path, body)

    def _classify(self, body: Any) -> Any:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        state = body.get("state")
        if state is not None and state not in self._states:
            return 400, {"error": {"message": "the state has another key", "code": "state_key"}}
        if self._fault == "large" and body.get("return_state"):
            return 422, {"error": {"message": "too large", "code": "state_too_large"}}
        start = 1 if state is None or self._fault == "forgets" else self._states[state]
        ends = [summed(start, text) for text in texts]
        if state is not None and self._fault == "in place":
            self._states[state] = ends[0]
        token = f"{id(self)}:{ends[0]}" if self._fault == "other" else f"state:{ends[0]}"
        self._states[token] = ends[0]
        return {"results": [{**_scores(end), "state": token} for end in ends]}

    def _step(self, name: str, body: Any) -> Any:
        stream = self._streams["0" if self._fault == "shared" else name]
        again = body["step"] == stream["step"]
        if again and self._fault == "crashes":
            return 500, {"error": {"message": "an index is out of range"}}
        if again and self._fault == "refuses":
            return 409, {"error": {"message": "this step is over", "code": "wrong_step"}}
        raced = self._fault == "races" and stream.get("raced") == body["step"]
        if again and not raced and self._fault not in ("twice", "shared"):
            return stream["reply"]
        if self.awaited() > 1:
            stream["raced"] = body["step"]
        start = 1 if self._fault == "forgets" else stream["value"]
        stream["value"] = summed(start, body["input"])
        stream["step"] = body["step"]
        stream["reply"] = {"results": [_scores(stream["value"])]}
        return stream["reply"]


def summed(start: int, text: str) -> int:
    value = start
    for character in text:
        value = (value * 31 + ord(character)) % 1_000_003
    return value


def _scores(value: int) -> dict[str, Any]:
    score = value / 1_000_003
    return {"label": "odd" if value % 2 else "even", "score": score, "scores": {"odd": score}}
