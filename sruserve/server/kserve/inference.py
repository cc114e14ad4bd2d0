"""The core of KServe v2 for all transports: metadata, statistics and inference."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

from pydantic import ValidationError

from sruserve import __version__
from sruserve.server.auth import Tenant
from sruserve.server.budget import Hold
from sruserve.server.errors import InvalidRequest, ModelNotFound, Unsupported
from sruserve.server.kserve.choosing import choose_outputs, reply_numbers, task_of
from sruserve.server.kserve.errors import unknown_model
from sruserve.server.kserve.messages import InferRequest, InferResponse, Tensor
from sruserve.server.kserve.parameters import RequestOptions, read_parameters, read_sequence
from sruserve.server.kserve.sequences import Sequences, check_step
from sruserve.server.kserve.signature import (
    PLATFORM,
    Signature,
    configure_model,
    describe_model,
)
from sruserve.server.kserve.sources import read_fields
from sruserve.server.kserve.statistics import Statistics, Timing
from sruserve.server.kserve.tasks import TensorTask
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import ModelRequest, Request
from sruserve.server.tasks.table import Tasks

_EXTENSIONS = [
    "binary_tensor_data", "classification", "model_configuration", "model_repository",
    "model_repository(unload_dependents)", "parameters", "schedule_policy", "sequence",
    "sequence(string_id)", "statistics",
]  # fmt: skip


class Inference:
    """Answers in the shapes of KServe's JSON protocol. All failures raise a `ServeError`.

    `errors.explain` converts such an error for clients. A version "" is the default.
    """

    def __init__(
        self, lifecycle: Lifecycle, tasks: Tasks, streams: Streams, limits: InputLimits
    ) -> None:
        self._lifecycle, self._tasks = lifecycle, tasks
        self.limits = limits
        self._sequences = Sequences(streams, limits)
        self._statistics: dict[tuple[str, str], Statistics] = {}

    async def infer(
        self, caller: Caller, tenant: Tenant, request: InferRequest, cost: int
    ) -> InferResponse:
        """Answer one inference. cost: bytes of the whole request with its parameters."""
        served = (await self._choose(tenant, request)).for_tenant(tenant)
        with served.in_flight, self._statistics_of(served).request() as timing:
            return await self._infer(caller, served, request, cost, timing)

    async def _infer(
        self,
        caller: Caller,
        served: Served,
        request: InferRequest,
        cost: int,
        timing: Timing,
    ) -> InferResponse:
        task = task_of(served, self._tasks)
        has_states = isinstance(served, ServedModel)
        options = read_parameters(request.parameters, task.options, has_states=has_states)
        model = None if options.sequence is None else with_states(served)
        if model is not None:  # before the fields, whose refusals do not speak of sequences
            model.check_streams("sequence_id")
        task.check_fields(served, options.fields)
        inputs = task.signature.check(served.name, request.inputs, options.fields)
        task.signature.check_outputs(served.name, request.outputs)
        begin = perf_counter()
        long = cost > LONG_CHARACTERS
        body = await offload(long, _read_request, task, options, inputs, cost=cost, caller=caller)
        timing.reading = perf_counter() - begin
        batch = request.inputs[0].shape[0] if task.signature.max_batch_size else 1
        sequence = options.sequence
        del options, inputs

        async def work(caller: Caller, served: Served) -> InferResponse:
            if isinstance(served, StreamView):
                task.begin_step(body, served)
            outputs, state = await task.run(caller, served, body, cost)
            begin = perf_counter()
            with self._reserve_reply(outputs, request):
                chosen = await choose_outputs(caller, outputs, request.outputs, served.labels)
            timing.inputs, timing.writing = batch, perf_counter() - begin
            parameters = {} if state is None else {"sru_state": state}
            return InferResponse(served.name, served.version, request.id, chosen, parameters)

        if sequence is None or model is None:
            if isinstance(body, Request) and body.return_state and batch > 1:
                raise InvalidRequest(
                    "'sru_return_state' needs a batch of one: "
                    "send each input in a request of its own",
                    param="parameters",
                )
            request.drop_read_fields()
            return await work(caller, served)
        assert isinstance(body, Request)
        check_step(served.name, body, sequence, batch)
        return await self._sequences.infer(caller, model, request, sequence, body, cost, work)

    def admit(self, tenant: Tenant, name: str, version: str, cost: int) -> None:
        """Raise if the engine would refuse a tenant's inference of `cost` bytes.

        Where there are several versions, the request has to be read first.
        """
        served = self.find(name, version)
        if version or name != served.name or self._is_sole(name):
            served.for_tenant(tenant).check_admission(cost)

    async def _choose(self, tenant: Tenant, request: InferRequest) -> Served:
        """The version for a request: the one it names, that of its states, or any."""
        name, parameters = request.model, request.parameters
        served = self.find(name, request.version)
        if request.version or name != served.name or self._is_sole(name):
            return served
        catalogue, state = self._lifecycle.catalogue, parameters.get("sru_state")
        if isinstance(state, str):
            return catalogue.of_states(served, name, state)
        sequence = read_sequence(parameters)
        if sequence is not None and not (sequence.start and sequence.step is None):
            weights = await self._sequences.weights(tenant, name, sequence)
            if weights or not sequence.start:  # a start may be the retry of an earlier one
                return catalogue.of_weights(name, weights)
        return catalogue.choose(name, served.task)

    def _is_sole(self, name: str) -> bool:
        versions = self._lifecycle.catalogue.find(name)
        return versions is None or versions.sole

    def signature(self, name: str, version: str = "") -> Signature:
        """The signature of a model."""
        return task_of(self.find(name, version), self._tasks).signature

    def reserve_reply(
        self, request: InferRequest, response: InferResponse
    ) -> AbstractContextManager[object]:
        """Count a response among the replies in memory while it is sent, in a `with` block.

        The task that computed it has stopped counting its results.
        """
        return self._reserve_reply(response.outputs, request)

    def _reserve_reply(self, outputs: Sequence[Tensor], request: InferRequest) -> Hold:
        numbers = reply_numbers(outputs, request.outputs)
        return self._tasks.limits.reserve_reply(
            numbers, "send shorter inputs, or request fewer classes"
        )

    def ready(self) -> bool:
        """Whether the server accepts work: its models are loaded, and it does not drain."""
        return self._lifecycle.ready and self._lifecycle.alive and not self._lifecycle.draining

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model accepts work; raises `ModelNotFound`."""
        served = self.find(name, version)
        return served.engine.alive and not self._lifecycle.draining

    def server_metadata(self) -> dict[str, Any]:
        """Describe the server: its name, version and extensions."""
        return {"name": PLATFORM, "version": __version__, "extensions": _EXTENSIONS}

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Describe a model: its inputs and outputs."""
        served = self.find(name, version)
        versions = self._lifecycle.catalogue.find(served.name)
        numbers = [served.version] if versions is None else versions.numbers()
        return describe_model(served, self.signature(name, version), numbers)

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """Configuration of a model, in the shape of Triton's `ModelConfig`."""
        served = self.find(name, version)
        max_versions = self._lifecycle.max_versions
        return configure_model(served, self.signature(name, version), max_versions)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times of a model, or of all.

        In the shape of Triton's `ModelStatisticsResponse`.
        """
        models = [self.find(name, version)] if name else self._all()
        return {
            "model_stats": [
                self._statistics_of(served).describe(served.name, served.version)
                for served in models
            ]
        }

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        """All models with their states."""
        entries = []
        for served in self._all():
            ready = self.model_ready(served.name, served.version)
            if ready or not ready_only:
                entries.append(
                    {
                        "name": served.name,
                        "version": served.version,
                        "state": "READY" if ready else "UNAVAILABLE",
                        "reason": "" if ready else "the model's engine does not run",
                    }
                )
        if not ready_only:
            unloaded = {"state": "UNAVAILABLE", "reason": "unloaded"}
            for name, version in self._lifecycle.repository.unloaded.values():
                entries.append({"name": name, "version": version, **unloaded})
        return entries

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or reload a model from its folder."""
        if parameters:
            raise Unsupported("loading a model takes no parameters: leave them out")
        await self._lifecycle.load(name)

    async def unload(self, name: str) -> None:
        """Take a model out of service."""
        await self._lifecycle.unload(name)

    def _all(self) -> Iterable[Served]:
        return [served for _, served in self._lifecycle.catalogue.listed()]

    def find(self, name: str, version: str) -> Served:
        """The model with a name, and with a version unless that is empty."""
        catalogue = self._lifecycle.catalogue
        try:
            return catalogue.version(name, version) if version else catalogue[name]
        except ModelNotFound:
            raise unknown_model(name, version) from None

    def _statistics_of(self, served: Served) -> Statistics:
        return self._statistics.setdefault((served.name, served.version), Statistics())


def _read_request(
    task: TensorTask, options: RequestOptions, inputs: Mapping[str, Tensor]
) -> ModelRequest:
    """The request under `/v1` with the values of tensors and parameters."""
    fields = options.fields
    if options.sequence is not None and "more" in task.schema.model_fields:
        fields = {**fields, "more": not options.sequence.end}
    try:
        request = task.schema.model_validate(fields)
    except ValidationError as error:
        raise as_serve_error(error, task.schema) from None
    # tensors were validated when they were read, and may be too long to validate again
    return request.model_copy(update=read_fields(task.fields, inputs))
