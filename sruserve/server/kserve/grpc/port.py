"""Whether gRPC is served, and a port that all workers listen on."""

import socket
from importlib.util import find_spec

from sruserve.server.settings import Settings, SettingsError, variable_name

_NEEDED = ("grpc", "grpc_health", "tritonclient")


def wants_grpc(settings: Settings) -> bool:
    """Whether gRPC is to be served; raises `SettingsError` if it is asked for and cannot be."""
    if settings.grpc_port is None:
        return False
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing and "grpc_port" in settings.model_fields_set:
        raise SettingsError(
            f"{variable_name('grpc_port')}={settings.grpc_port} needs {', '.join(missing)}: "
            "install sruserve[grpc], or set it to off"
        )
    return not missing


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the servers of this process's workers; raises `OSError`.

    They all listen there, and the kernel shares their clients out among them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:  # alone, which two servers of ours could not both be
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    held = socket.socket(family)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
