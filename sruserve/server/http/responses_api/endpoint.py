"""`POST /v1/responses`: completions in the shape of OpenAI's Responses API."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import InvalidRequest, ServeError, StateTooLarge
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.responses_api.request import ResponsesRequest
from sruserve.server.http.responses_api.writer import ResponseJson
from sruserve.server.http.sse import send_events
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion_request import CompletionRequest

# The names of the same fields in the errors of completions.
_PARAMS = {
    "prompt": "input",
    "state": "previous_response_id",
    "return_state": "store",
    "max_tokens": "max_output_tokens",
    "json_schema": "text",
}
_ADVICE = "lower `max_tokens`, or send a shorter input"


class ResponsesEndpoint(HttpEndpoint):
    """Runs a request as a completion, whose end state becomes the id of the response.

    ping_seconds: the maximum silence of an event stream.
    """

    schema = ResponsesRequest

    def __init__(
        self, path: str, task: CompleteTask, tenants: Tenants, ping_seconds: float
    ) -> None:
        self.path = path
        super().__init__(tenants, (*task.models, UNKNOWN_MODEL))
        self._complete, self._ping_seconds = task, ping_seconds

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        task = self._complete
        body = await call.json_body(task.limits)
        request, cost = ResponsesRequest.model_validate_json(body), len(body)
        del body
        with _own_names():
            completion = request.completion()
            request.drop_read_fields()
            served = task.choose(completion).for_tenant(tenant)
            call.model = served.name
            _check(request, served)
            served.check_admission(cost)
            with served.in_flight:
                await self._answer(call, request, completion, served, cost)

    async def _answer(
        self,
        call: HttpCall,
        request: ResponsesRequest,
        completion_request: CompletionRequest,
        served: ServedModel,
        cost: int,
    ) -> None:
        task = self._complete
        # The last events of a stream repeat its text, which stays in memory until then.
        kept = (
            task.limits.reserve_reply(request.token_limit, _ADVICE)
            if request.stream
            else nullcontext()
        )
        with kept:
            async with task.run(call, completion_request, served, cost) as completion:
                writer = ResponseJson(call.number, request, completion)
                if request.stream:
                    await send_events(call, call, completion, writer, self._ping_seconds)
                    return
                (choice,) = await completion.choices()
                large = completion.large
                await call.reply(await offload(large, writer.whole, choice, large, caller=call))


def _check(request: ResponsesRequest, served: ServedModel) -> None:
    """Raise unless a model generates text, and the id of the response can have its state."""
    if served.model.codec is None:
        raise InvalidRequest(
            f"{served.name} has no vocabulary, so its responses have no text: send token ids to "
            "/v1/completions",
            param="model",
        )
    if request.stores:
        try:
            served.check_fits("store")
        except StateTooLarge as error:
            raise StateTooLarge(
                f"a state of {served.name} has {served.states.nbytes} bytes, too many for the id "
                'of a response: send "store": false, or ask the operator to raise '
                "SRUSERVE_MAX_STATE_TOKEN_BYTES",
                param="store",
            ) from error


@contextmanager
def _own_names() -> Iterator[None]:
    """Give errors of completions the names that the fields have here."""
    try:
        yield
    except ServeError as error:
        for name, own in _PARAMS.items():
            for mark in "'`":
                error.message = error.message.replace(f"{mark}{name}{mark}", f"{mark}{own}{mark}")
        error.param = _PARAMS.get(error.param or "", error.param)
        raise
