"""sruserve's own protocol: tasks under `/v1`, state tokens, held streams with numbered steps."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sruserve.check.errors import NotApplicable, Refused
from sruserve.check.protocols.choosing import choose
from sruserve.check.protocols.completions import result_of
from sruserve.check.protocols.fields import field, objects, segment
from sruserve.check.protocols.openai import OpenAiServer
from sruserve.check.protocols.sruserve_results import task_result
from sruserve.check.protocols.sruserve_streams import HeldStream, StateTokens
from sruserve.check.protocols.tensors import Input, model_inputs
from sruserve.check.results import Result
from sruserve.check.samples import TEXTS, Sample
from sruserve.check.server import (
    NumberedStream,
    Ready,
    Server,
    Stream,
    Tokens,
    TokenStream,
)
from sruserve.check.transport import Transport

_GENERATION = {"max_tokens": 24, "temperature": 0.8, "logprobs": 1, "return_token_ids": True}
_KIND = "models"
_STATE_TOO_LARGE = "state_too_large"
_ANY_VOCABULARY = 10  # ids that most models have
_WAIT_K = 3  # tokens of a text, some of whose chunks then have a part of its translation
_INPUTS = {"generate": "prompt", "answer": "question"}
_ID_INPUTS = ("input_ids", "pair_ids")


class SruserveServer(Server):
    """A model of any task."""

    protocol = "sruserve"

    def __init__(
        self,
        replicas: Sequence[Transport],
        description: Mapping[str, Any],
        inputs: Sequence[Input],
    ) -> None:
        super().__init__(replicas, field(description, "id", str))
        self.task = field(description, "task", str)
        self.can_stream = bool(description.get("streams"))
        self.path = "/v1/completions" if self.task == "generate" else f"/v1/{self.task}"
        if self.task == "pair":
            self.path = "/v1/classify"
        self._inputs = tuple(inputs)
        size = description.get("vocab_size")
        self._vocab_size = size if isinstance(size, int) and size > 0 else _ANY_VOCABULARY
        (self._first,) = self.samples(TEXTS[:1])

    @classmethod
    def open(cls, replicas: Sequence[Transport], model: str | None) -> "SruserveServer":
        """Choose the model, and read what it takes."""
        entries = {
            field(entry, "id", str): entry
            for entry in objects(replicas[0].get("/v1/models"), "data")
        }
        chosen = choose(model, list(entries), _KIND)
        path = f"/v2/models/{segment(chosen)}"
        metadata, config = replicas[0].get(path), replicas[0].get(f"{path}/config")
        inputs = model_inputs(metadata, config if isinstance(config, dict) else {})
        return cls(replicas, entries[chosen], inputs)

    def samples(self, texts: Sequence[str]) -> tuple[Sample, ...]:
        samples = tuple(self._sample(text, number) for number, text in enumerate(texts))
        self._first = samples[0]
        return samples

    def _sample(self, text: str, number: int) -> Sample:
        generator = random.Random(number)
        name = _INPUTS.get(self.task, "input")
        first = self._inputs[0]
        if first.name == "features" and self.task != "generate":
            features = {"features": first.value(text, generator)}
            return Sample(features, frozenset(features), number=number)
        value: Any = text
        if first.name in _ID_INPUTS:
            value = [generator.randrange(self._vocab_size) for _ in text.split()]
        values = {name: value}
        if self.task == "pair":
            values["pair"] = value[::-1]
        if self.task == "answer":
            values["context"] = value
        return Sample(values, frozenset({name}), self._options(number), number)

    def _options(self, number: int) -> dict[str, Any]:
        """The fields of a request that say how its result is found."""
        if self.task == "generate":
            return _GENERATION | {"seed": number}
        if self.task != "translate":
            return {}
        return {"scores": True} | ({"wait_k": _WAIT_K} if self.can_stream else {})

    def cut(self, sample: Sample, places: Sequence[float]) -> list[Sample]:
        """Of a generated text, the prompt stays whole, and the tokens are cut."""
        generates = self.task == "generate"
        return sample.cut_generation(places) if generates else sample.cut(places)

    def ask(self, sample: Sample, ready: Ready | None = None, replica: int = 0) -> Result:
        return self.result(self.replicas[replica].post(self.path, self.body(sample), ready))

    def ask_in_one(self, samples: Sequence[Sample]) -> list[Result]:
        if self.task == "generate":
            raise NotApplicable("prompts of one request share a seed")
        listed = {name: [s.values[name] for s in samples] for name in samples[0].values}
        body = {"model": self.model, **listed, **samples[0].options}
        reply = self.replicas[0].post(self.path, body)
        return [task_result(self.task, each) for each in objects(reply, "results", len(samples))]

    def tokens(self) -> Tokens:
        self._needs_streams()
        tokens = StateTokens(self)
        try:
            tokens.step(None, self._first, last=False)
        except Refused as error:
            if error.server_code != _STATE_TOO_LARGE:
                raise
            raise NotApplicable(f"states are too large for a client: {error}") from None
        return tokens

    def streams(self) -> dict[str, Callable[[], Stream]]:
        self._needs_streams()
        kinds: dict[str, Callable[[], Stream]] = {}
        with suppress(NotApplicable):
            tokens = self.tokens()
            kinds[tokens.name] = lambda: TokenStream(tokens)
        with suppress(NotApplicable):
            kinds["held streams"] = self.numbered()
        if not kinds:
            raise NotApplicable("neither state tokens nor held streams are available")
        return kinds

    def numbered(self) -> Callable[[], NumberedStream]:
        self._needs_streams()
        if self.task == "translate":
            raise NotApplicable("no stream of the server holds a translation: its client does")
        try:
            HeldStream(self).close()
        except Refused as error:
            if error.status not in (404, 405, 501):
                raise
            raise NotApplicable(f"held streams are not available: {error}") from None
        return lambda: HeldStream(self)

    def complete(
        self, sample: Sample, seed: int, want_events: bool = False, ready: Ready | None = None
    ) -> Result:
        if self.task != "generate":
            raise NotApplicable(f"model {self.model} is of task {self.task}: it writes no text")
        completions = OpenAiServer(self.replicas, self.model)
        return completions.complete(sample, seed, want_events, ready)

    def body(self, sample: Sample, **fields: Any) -> dict[str, Any]:
        """A request to the task's route."""
        values = sample.values
        if values.get("prompt") == []:
            values = {"prompt": [[]]}  # one prompt of no ids
        return {"model": self.model, **values, **sample.options, **fields}

    def result(self, reply: Any) -> Result:
        """The result of the only input of a request."""
        (entry,) = self.entries(reply)
        if self.task == "generate":
            return result_of(entry)
        return task_result(self.task, entry)

    def entries(self, reply: Any) -> list[dict[str, Any]]:
        return objects(reply, "choices" if self.task == "generate" else "results", 1)

    def more(self, last: bool) -> dict[str, bool]:
        """The field that announces another chunk; a completion has none."""
        return {} if self.task == "generate" or last else {"more": True}

    def _needs_streams(self) -> None:
        if not self.can_stream:
            raise NotApplicable(f"model {self.model} reads whole inputs only, so it has no states")
