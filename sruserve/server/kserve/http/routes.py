"""The routes of KServe v2, `/v2`."""

from functools import partial
from typing import Any

from sruserve.server.auth import Tenants
from sruserve.server.errors import (
    ModelBusy,
    ModelControlRefused,
    ModelLoadFailed,
    ModelNotFound,
    ServeError,
    StateQuotaExceeded,
    StepReused,
    StoreUnavailable,
    StreamExists,
    StreamExpired,
    StreamsNeedRedis,
    StreamUnknown,
    Unsupported,
    WrongStep,
)
from sruserve.server.http.routes import (
    ANY_TENANT,
    BODY,
    GRAMMAR,
    TASK,
    Errors,
    ErrorShape,
    Mounted,
    Reply,
    Route,
)
from sruserve.server.kserve.errors import status_of
from sruserve.server.kserve.http import management, probes
from sruserve.server.kserve.http import responses as replies
from sruserve.server.kserve.http.infer import HEADER_LENGTH, InferEndpoint
from sruserve.server.kserve.http.management import (
    Change,
    ChangeEndpoint,
    ControlBody,
    LookUp,
    LookUpEndpoint,
)
from sruserve.server.kserve.http.probes import Probe
from sruserve.server.kserve.infer_body import InferHeader
from sruserve.server.kserve.inference import Inference
from sruserve.server.tasks.limits import InputLimits

PREFIX = "/v2"
_TAG = "KServe v2"
_BINARY = "application/octet-stream"
_FAILURE = ErrorShape(replies.Failure, status=status_of)
_LOADING: Errors = (ModelControlRefused, ModelNotFound, ModelBusy, Unsupported)
_SEQUENCE: Errors = (
    StreamUnknown, StreamExpired, StreamExists, WrongStep, StepReused, StateQuotaExceeded,
    StreamsNeedRedis, StoreUnavailable,
)  # fmt: skip
_JSON_LENGTH = {HEADER_LENGTH.decode().title(): "Bytes of JSON before the binary tensors."}
_OF_MODEL = (f"{PREFIX}/models/{{model}}", f"{PREFIX}/models/{{model}}/versions/{{version}}")
_OBJECT = Reply(dict[str, Any])


def _probe(path: str, handler: Probe, *replies: Reply, errors: Errors = ()) -> Route[Probe]:
    return Route(
        "GET", path, handler, handler.__name__, _TAG, replies, errors, error_shape=_FAILURE
    )


def _look_up(
    path: str, name: str, handler: LookUp, reply: Reply, errors: Errors = (ModelNotFound,)
) -> Route[LookUp]:
    errors = (*ANY_TENANT, *errors)
    return Route("GET", path, handler, name, _TAG, (reply,), errors, error_shape=_FAILURE)


def _change(path: str, handler: Change, reply: Reply, *errors: type[ServeError]) -> Route[Change]:
    return Route(
        "POST", f"{PREFIX}/repository/{path}", handler, handler.__name__, _TAG, (reply,),
        (*ANY_TENANT, *BODY, *errors),
        ControlBody, body_is_optional=True, error_shape=_FAILURE,
    )  # fmt: skip


def _infer(path: str) -> Route[type[InferEndpoint]]:
    return Route(
        "POST", f"{path}/infer", InferEndpoint, "infer", _TAG,
        (Reply(replies.InferReply), Reply(media_type=_BINARY, headers=_JSON_LENGTH)),
        (*ANY_TENANT, *TASK, *GRAMMAR, *_SEQUENCE),
        InferHeader, body_types=(_BINARY,), headers=_JSON_LENGTH, error_shape=_FAILURE,
    )  # fmt: skip


PROBES = (
    _probe(f"{PREFIX}/health/live", probes.live, Reply(replies.Live)),
    _probe(
        f"{PREFIX}/health/ready",
        probes.ready,
        Reply(replies.Ready),
        Reply(replies.Ready, 503, description="The server is not ready."),
    ),
    *(
        _probe(
            f"{path}/ready",
            probes.model_ready,
            Reply(replies.ModelReady),
            Reply(replies.ModelReady, 503, description="The model is not ready."),
            errors=(ModelNotFound,),
        )
        for path in _OF_MODEL
    ),
)
LOOK_UPS = (
    _look_up(
        PREFIX, "server_metadata", Inference.server_metadata, Reply(replies.ServerMetadata), ()
    ),
    _look_up(f"{PREFIX}/models/stats", "statistics", Inference.statistics, _OBJECT, ()),
    *(
        route
        for path in _OF_MODEL
        for route in (
            _look_up(path, "model_metadata", Inference.metadata, Reply(replies.ModelMetadata)),
            _look_up(f"{path}/config", "model_config", Inference.config, _OBJECT),
            _look_up(f"{path}/stats", "model_statistics", Inference.statistics, _OBJECT),
        )
    ),
)
CHANGES = (
    _change("index", management.index, Reply(list[replies.IndexEntry])),
    _change("models/{model}/load", management.load, _OBJECT, *_LOADING, ModelLoadFailed),
    _change("models/{model}/unload", management.unload, _OBJECT, *_LOADING),
)
INFERENCES = tuple(map(_infer, _OF_MODEL))
ROUTES: tuple[Route[Any], ...] = (*PROBES, *LOOK_UPS, *CHANGES, *INFERENCES)


def mount(tenants: Tenants, inference: Inference, limits: InputLimits) -> list[Mounted]:
    """The handlers of all routes."""
    infer = InferEndpoint(tenants, inference, limits)
    return [
        *((route, partial(route.handler, inference)) for route in PROBES),
        *((route, LookUpEndpoint(tenants, inference, route.handler)) for route in LOOK_UPS),
        *((route, ChangeEndpoint(tenants, inference, limits, route.handler)) for route in CHANGES),
        *((route, infer) for route in INFERENCES),
    ]
