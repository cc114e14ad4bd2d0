"""The application under Ray Serve: `application`, which deploy/ray/serve.yaml deploys.

Ray's proxy sends each request to any replica. No stream needs the same one twice, because its state
travels with its requests, or is in Redis. Needs the extra `ray`.
"""

from typing import Any, cast

import ray
from ray import serve

from sruserve.server.app import Application
from sruserve.server.auth import Tenants
from sruserve.server.clocks import Clocks
from sruserve.server.logs.config import set_up_own_logging
from sruserve.server.settings import Settings, SettingsError, load_settings, variable_name
from sruserve.server.streams.opening import create_streams
from sruserve.server.streams.service import Streams


class EngineDead(RuntimeError):
    """An engine's thread has ended; Ray replaces the replica."""


def replica_settings(settings: Settings, cpus: float) -> Settings:
    """The settings of one of several replicas. cpus: those that Ray gives it.

    Raises `SettingsError` for what replicas behind one address cannot have.
    """
    if settings.state_keys is None:
        raise SettingsError(
            "SRUSERVE_STATE_KEYS is not set: set it for all replicas, which otherwise refuse each "
            "other's states"
        )
    if settings.model_control:
        raise SettingsError(
            "SRUSERVE_MODEL_CONTROL=true would change the models of one replica only: unset it"
        )
    tls = [name for name in ("tls_cert", "tls_key", "tls_client_ca") if getattr(settings, name)]
    if tls:
        names = " and ".join(map(variable_name, tls))
        raise SettingsError(
            f"Ray's proxy is the only port, and it would ignore {names}: unset this, and end TLS "
            "in a proxy before it"
        )
    # Ray's proxy is the only port; replicas on one node could not share another.
    threads = settings.threads or max(1, int(cpus))
    return settings.model_copy(update={"threads": threads, "grpc_port": None})


def create_replica() -> Application:
    """Create the application of a replica, in its process."""
    settings = load_settings()
    set_up_own_logging(settings.log_level, settings.log_format)
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return Application(replica_settings(settings, cpus), make_streams=_make_streams)


def _make_streams(settings: Settings, tenants: Tenants, clocks: Clocks) -> Streams:
    """Hold streams in Redis or, as with several workers, not at all."""
    shared = settings.model_copy(update={"workers": max(2, settings.workers)})
    return create_streams(shared, tenants, clocks)


@serve.deployment(
    name="sruserve",
    # More requests wait in the proxy. A stream is a request as long as it is open.
    max_ongoing_requests=1024,
    autoscaling_config={
        "min_replicas": 2,
        "max_replicas": 8,
        "target_ongoing_requests": 64,
        "upscale_delay_s": 10,
        "downscale_delay_s": 600,
    },
    # How long running requests may take when a replica stops.
    graceful_shutdown_timeout_s=20,
    ray_actor_options={"num_cpus": 2},
)
@serve.ingress(create_replica)
class Replica:
    """One process with its own engines."""

    def check_health(self) -> None:
        """Raise if the replica has to be replaced; Ray asks regularly."""
        application: Application = self.app  # type: ignore[attr-defined]  # the ingress
        if not application.lifecycle.alive:
            raise EngineDead("the thread of an engine has ended")


application = cast(Any, Replica).bind()  # the decorators made it a deployment
