"""Any server of OpenAI's completions, such as vLLM's or llama.cpp's."""

from collections.abc import Callable, Sequence
from typing import Any

from sruserve.check.errors import NotApplicable, Refused
from sruserve.check.protocols.choosing import choose
from sruserve.check.protocols.completions import (
    complete,
    complete_all,
    result_of,
    streamed,
    text_alone,
)
from sruserve.check.protocols.fields import objects
from sruserve.check.results import Result
from sruserve.check.samples import Sample
from sruserve.check.server import NumberedStream, Ready, Server, Stream
from sruserve.check.transport import Transport

MAX_TOKENS = 24
_KIND = "models of completions"


class OpenAiServer(Server):
    """Completions without states: greedy ones, and ones that a seed determines."""

    protocol = "openai"

    def __init__(self, replicas: Sequence[Transport], model: str) -> None:
        super().__init__(replicas, model)
        self._logprobs: dict[str, int] = {"logprobs": 1}

    @classmethod
    def open(cls, replicas: Sequence[Transport], model: str | None) -> "OpenAiServer":
        """Choose the model, and find out whether the server returns log probabilities."""
        entries = objects(replicas[0].get("/v1/models"), "data")
        names = [
            entry["id"]
            for entry in entries
            if isinstance(entry.get("id"), str) and entry.get("task", "generate") == "generate"
        ]
        server = cls(replicas, choose(model, names, _KIND))
        first = server.samples(("Who",))[0]
        try:
            server.ask(first)
        except Refused as error:
            if error.status not in (400, 422, 501):
                raise
            server._logprobs = {}
            server.ask(first)
        return server

    def samples(self, texts: Sequence[str]) -> tuple[Sample, ...]:
        return tuple(Sample({"prompt": text}, frozenset({"prompt"})) for text in texts)

    def streams(self) -> dict[str, Callable[[], Stream]]:
        raise NotApplicable("OpenAI's completions have no states: each request is a whole input")

    def numbered(self) -> Callable[[], NumberedStream]:
        raise NotApplicable("OpenAI's completions have no steps: a retried request changes nothing")

    def ask(self, sample: Sample, ready: Ready | None = None, replica: int = 0) -> Result:
        body = self._greedy(sample.values["prompt"])
        return result_of(complete(self.replicas[replica], body, ready))

    def ask_in_one(self, samples: Sequence[Sample]) -> list[Result]:
        body = self._greedy([sample.values["prompt"] for sample in samples])
        try:
            return complete_all(self.replicas[0], body, len(samples))
        except Refused as error:
            if error.status >= 500 and error.status != 501:
                raise
            raise NotApplicable(f"no several prompts in one request: {error}") from None

    def complete(
        self, sample: Sample, seed: int, want_events: bool = False, ready: Ready | None = None
    ) -> Result:
        body = {
            "model": self.model,
            "prompt": sample.values["prompt"],
            "max_tokens": MAX_TOKENS,
            "temperature": 1.0,
            "seed": seed,
        }
        if want_events:
            return streamed(self.replicas[0], body, ready)
        return text_alone(result_of(complete(self.replicas[0], body, ready)))

    def _greedy(self, prompt: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
            **self._logprobs,
        }
