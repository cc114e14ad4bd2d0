"""KServe v2 over HTTP, as Triton and others serve it; sruserve's parameters where it says so."""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sruserve.check.errors import Misuse, NotApplicable, Refused
from sruserve.check.protocols.choosing import choose
from sruserve.check.protocols.fields import field, objects, segment, texts_of
from sruserve.check.protocols.tensors import Input, model_inputs, values_of
from sruserve.check.results import Result, Values, flatten, joined
from sruserve.check.samples import Sample
from sruserve.check.server import (
    NumberedStream,
    Ready,
    Server,
    Stream,
)
from sruserve.check.transport import Transport

_GENERATION = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
_KIND = "models"
# What sruserve returns of one request alone: places in its text, and spans cut by chunks.
_OF_A_REQUEST = ("starts", "ends", "span_", "pending")
_TEXTS = ("text_output",)


class KServeServer(Server):
    """A model with tensors as inputs and outputs."""

    protocol = "kserve"

    def __init__(
        self,
        replicas: Sequence[Transport],
        model: str,
        inputs: Sequence[Input],
        config: Mapping[str, Any],
        is_sruserve: bool,
    ) -> None:
        super().__init__(replicas, model)
        self.path = f"/v2/models/{segment(model)}/infer"
        self.is_sruserve = is_sruserve
        self.has_sequences = "sequence_batching" in config
        self._inputs = tuple(inputs)
        outputs = texts_of(objects({"output": [], **config}, "output"), "name")
        writes = bool({"text_output", "output_ids"} & outputs)
        self.generates = is_sruserve and writes and "score" not in outputs  # as translations have

    @classmethod
    def open(cls, replicas: Sequence[Transport], model: str | None) -> "KServeServer":
        """Choose the model, and read its inputs from its metadata and Triton's configuration."""
        server = replicas[0]
        names: list[str] = []
        with suppress(Refused):  # only some servers list their models
            index = {"models": server.post("/v2/repository/index", {})}
            entries = [e for e in objects(index, "models") if e.get("state", "READY") == "READY"]
            names = list(dict.fromkeys(field(entry, "name", str) for entry in entries))
        chosen = choose(model, names, _KIND)
        path = f"/v2/models/{segment(chosen)}"
        metadata = server.get(path)
        config: dict[str, Any] = {}
        with suppress(Refused):
            config = server.get(f"{path}/config")
        config = config if isinstance(config, dict) else {}
        policy = config.get("model_transaction_policy")
        if isinstance(policy, dict) and policy.get("decoupled"):
            raise Misuse(f"model {chosen} is decoupled: it has no single replies to compare")
        is_sruserve = isinstance(metadata, dict) and metadata.get("platform") == "sruserve"
        return cls(replicas, chosen, model_inputs(metadata, config), config, is_sruserve)

    def samples(self, texts: Sequence[str]) -> tuple[Sample, ...]:
        along = frozenset(each.name for each in self._inputs if each.is_text or each.has_time)
        samples = []
        for number, text in enumerate(texts):
            generator = random.Random(number)
            values = values_of(self._inputs, text, generator)
            options = _GENERATION if self.generates else {}
            samples.append(Sample(values, along, options, number))
        return tuple(samples)

    def ask(self, sample: Sample, ready: Ready | None = None, replica: int = 0) -> Result:
        parameters: dict[str, Any] = {}
        if self.has_sequences and not self.is_sruserve:  # Triton runs such models in sequences only
            parameters = _place(_new_sequence(), first=True, last=True)
        return self.infer([sample], parameters, replica, ready)[0]

    def ask_in_one(self, samples: Sequence[Sample]) -> list[Result]:
        if not all(each.has_batch for each in self._inputs):
            raise NotApplicable(f"model {self.model} has no batches")
        if self.generates:
            raise NotApplicable("prompts of one request share a seed")
        if self.has_sequences and not self.is_sruserve:
            raise NotApplicable("requests of a sequence have no batch")
        if len({sample.size for sample in samples}) > 1 and any(i.has_time for i in self._inputs):
            raise NotApplicable("a tensor holds inputs of one length")
        return self.infer(samples, {})

    def cut(self, sample: Sample, places: Sequence[float]) -> list[Sample]:
        """Of a generated text, the prompt stays whole, and the tokens are cut."""
        return sample.cut_generation(places) if self.generates else sample.cut(places)

    def joined(self, results: Sequence[Result], whole: Result) -> Result:
        """An output grows with the input if those of all chunks are as long as the whole's."""
        last = results[-1]
        growing = {
            name
            for name, values in whole.parts.items()
            if name in _TEXTS
            or sum(len(r.parts.get(name, ())) for r in results) == len(values)
            or len(last.parts.get(name, ())) != len(values)
        }
        return joined([Result(result.parts, frozenset(growing)) for result in results])

    def streams(self) -> dict[str, Callable[[], Stream]]:
        if not self.has_sequences:
            raise NotApplicable(f"the configuration of {self.model} names no sequences")
        if not any(each.is_text or each.has_time for each in self._inputs):
            raise NotApplicable("each request is one step, so no request is the whole of several")
        return {"sequences": lambda: _Sequence(self)}

    def numbered(self) -> Callable[[], NumberedStream]:
        if not self.is_sruserve:
            raise NotApplicable("KServe's sequences have no step numbers: a retry counts twice")
        self.streams()
        return lambda: _Sequence(self)

    def complete(
        self, sample: Sample, seed: int, want_events: bool = False, ready: Ready | None = None
    ) -> Result:
        if not self.generates:
            raise NotApplicable("KServe has no field for a seed")
        if want_events:
            raise NotApplicable("KServe has no events: a reply is whole")
        return self.infer([sample], {"seed": seed}, ready=ready)[0]

    def infer(
        self,
        samples: Sequence[Sample],
        parameters: Mapping[str, Any],
        replica: int = 0,
        ready: Ready | None = None,
    ) -> list[Result]:
        """The results of samples in one request."""
        tensors = [
            each.tensor([sample.values[each.name] for sample in samples]) for each in self._inputs
        ]
        body = {"inputs": tensors, "parameters": {**samples[0].options, **parameters}}
        reply = self.replicas[replica].post(self.path, body, ready)
        outputs = objects(reply, "outputs")
        parts = [self._parts(outputs, number, len(samples)) for number in range(len(samples))]
        return [Result(each) for each in parts]

    def _parts(self, outputs: Sequence[Any], number: int, count: int) -> dict[str, Values]:
        """The values of one sample of a batch."""
        parts: dict[str, Values] = {}
        for output in outputs:
            name, values = field(output, "name", str), flatten(field(output, "data", list))
            if self.is_sruserve and name.startswith(_OF_A_REQUEST):
                continue
            if len(values) % count:
                raise NotApplicable(f"output {name} is not a batch of {count}")
            size = len(values) // count
            values = values[number * size : (number + 1) * size]
            if self.generates and name in _TEXTS:
                values = tuple("".join(str(value) for value in values))
            parts[name] = values
        return parts


class _Sequence(NumberedStream):
    """A sequence of requests, whose state the server keeps."""

    def __init__(self, server: KServeServer) -> None:
        self._server, self._id = server, _new_sequence()

    def step(
        self, number: int, chunk: Sample, last: bool, replica: int = 0, ready: Ready | None = None
    ) -> Result:
        parameters = _place(self._id, first=number == 1, last=last)
        if self._server.is_sruserve:
            parameters["sru_step"] = number
        return self._server.infer([chunk], parameters, replica, ready)[0]


def _place(sequence: int, first: bool, last: bool) -> dict[str, Any]:
    return {"sequence_id": sequence, "sequence_start": first, "sequence_end": last}


def _new_sequence() -> int:
    """A number that no other client uses."""
    return 1 + secrets.randbits(52)  # exact in every reader of JSON
