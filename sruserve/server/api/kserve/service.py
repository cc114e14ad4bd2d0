"""The core of KServe v2 that all its transports share: metadata, statistics and inference."""

from typing import Any

from sruserve.server.api.call import Caller
from sruserve.server.api.kserve.messages import InferRequest, InferResponse
from sruserve.server.api.routes import Routes
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.tenants import Tenant


class Inference:
    """Answers in the shapes of KServe's JSON protocol. Whatever fails raises a `ServeError`.

    `problems.explain` says what a transport tells of such an error. A version "" is the default.
    """

    def __init__(self, lifecycle: Lifecycle, routes: Routes) -> None:
        self._lifecycle, self._routes = lifecycle, routes

    async def infer(self, caller: Caller, tenant: Tenant, request: InferRequest) -> InferResponse:
        """Answer one inference."""
        raise NotImplementedError

    def live(self) -> bool:
        """Whether the process answers."""
        return True

    def ready(self) -> bool:
        """Whether it takes work: models are loaded and warm, and it is not draining."""
        raise NotImplementedError

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model takes work."""
        raise NotImplementedError

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        raise NotImplementedError

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Inputs and outputs of a model."""
        raise NotImplementedError

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration in Triton's shape."""
        raise NotImplementedError

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times of a model, or of all."""
        raise NotImplementedError

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        """All models with their states."""
        raise NotImplementedError

    async def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load a model, or load it again."""
        raise NotImplementedError

    async def unload(self, name: str) -> None:
        """Take a model out of service."""
        raise NotImplementedError
