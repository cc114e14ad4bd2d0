"""`POST /v1/state`: what a state token contains, for the client that owns it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import (
    CannotStream,
    StateExpired,
    StateNotFinite,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StateWrongTenant,
)
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.responses.results import ModelId
from sruserve.server.http.routes import ANY_TENANT, BODY, Mounted, Reply, Route
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import offload
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.state.token import claimed_expiry
from sruserve.server.state.view import FIXED_NUMBERS, MAX_VALUES, view_entries
from sruserve.server.tasks.inputs import opens_long
from sruserve.server.tasks.limits import InputLimits

# Less than LONG_CHARACTERS, since numpy's sums of a tensor take longer than JSON of its numbers.
_LOOP_NUMBERS = 4096


class ViewRequest(BaseModel):
    """A state to look at."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={"examples": [{"state": "AsBAXIsMRwRZ4EaL…", "values": 64}]},
    )

    state: str = Field(description="A state that a reply returned to this client.")
    values: Annotated[int, Field(ge=0, le=MAX_VALUES)] = Field(
        64, description="Most values of each tensor of the state in the reply."
    )


class StateEntry(BaseModel):
    """One tensor of a state."""

    name: str = Field(
        description="Name of the tensor: the number of its layer, a dot, and its name there, such "
        "as `0.c`."
    )
    size: int = Field(description="How many numbers it has.")
    min: float = Field(description="The smallest of them.")
    max: float = Field(description="The largest of them.")
    mean: float = Field(description="Their mean.")
    values: list[float] = Field(
        description="Evenly spaced numbers of it, in their order: at most `values` of the request."
    )


class StateReply(BaseModel):
    """What a state token contains, without its texts and the key of its sampler."""

    model: ModelId
    version: str = Field(description="Version of the model whose weights the state belongs to.")
    steps: int = Field(description="Tokens or feature rows that the state has read.")
    state_bytes: int = Field(description="Bytes of the state's numbers.")
    expires_at: int | None = Field(
        description="When the token expires, in seconds since 1970; null: never."
    )
    entries: list[StateEntry] = Field(description="The tensors of the state, in their order.")


class ViewEndpoint(HttpEndpoint):
    """Look into a state.

    Return the steps, the expiry, and a summary of the numbers of a state token. The texts and the
    sampler's key in the token stay sealed.
    """

    schema = ViewRequest

    def __init__(
        self, path: str, catalogue: Catalogue, tenants: Tenants, limits: InputLimits
    ) -> None:
        self.path = path
        self._catalogue, self._limits = catalogue, limits
        super().__init__(tenants, (*catalogue.streaming(), UNKNOWN_MODEL))

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        body = await call.json_body(self._limits)
        request = ViewRequest.model_validate_json(body)
        cost = len(body)
        del body
        served = self._catalogue.of_state(request.state).for_tenant(tenant)
        call.model = served.name
        entries = len(served.model.network.layout.entries)
        numbers = entries * (FIXED_NUMBERS + request.values)
        with served.in_flight, self._limits.count_reply(numbers):
            long = opens_long(request.state) or numbers > _LOOP_NUMBERS
            reply = await offload(long, _body, served, request, long, cost=cost, caller=call)
            await call.reply(reply)


def _body(served: ServedModel, request: ViewRequest, large: bool) -> bytes:
    snapshot = served.open_state(request.state)
    layout = served.model.network.layout
    body = {
        "model": served.name,
        "version": served.version,
        "steps": snapshot.steps,
        "state_bytes": layout.nbytes,
        "expires_at": claimed_expiry(request.state),
        "entries": view_entries(snapshot, layout, request.values),
    }
    return (long_json if large else json_bytes)(body)


ROUTES: tuple[Route[type[ViewEndpoint]], ...] = (
    Route(
        "POST", "/v1/state", ViewEndpoint, "view_state", "inference",
        (Reply(StateReply),),
        (
            *ANY_TENANT, *BODY, CannotStream, StateTampered, StateUnknownKey, StateWrongTenant,
            StateWrongModel, StateNotFinite, StateTooLarge, StateExpired,
        ),
        ViewRequest,
    ),
)  # fmt: skip


def mount(catalogue: Catalogue, tenants: Tenants, limits: InputLimits) -> list[Mounted]:
    """Create the endpoint."""
    return [(route, route.handler(route.path, catalogue, tenants, limits)) for route in ROUTES]
