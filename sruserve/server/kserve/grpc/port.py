"""Decide whether to serve gRPC, and reserve a port for all workers."""

import socket
from importlib.util import find_spec

from sruserve.server.settings import Settings, SettingsError, variable_name

_NEEDED = ("grpc", "grpc_health", "tritonclient")
# GRPC_SSL_CIPHER_SUITES, where clients have certificates: over TLS 1.2, gRPC's core keeps all that
# a client sends for two hours, and it has no option for the version. This suite needs a key that
# both sides have agreed on before, and there is none; TLS 1.3 has suites of its own.
NO_CIPHER_OF_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"


def wants_grpc(settings: Settings) -> bool:
    """Whether to serve gRPC; raises `SettingsError` if it is requested and impossible."""
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
    """A socket that reserves the port for the servers of all workers; raises `OSError`.

    All of them listen on it, and the kernel distributes clients among them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:  # exclusive: fails if another server of ours runs
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    reservation = socket.socket(family)
    try:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind((host, port))
    except OSError:
        reservation.close()
        raise
    return reservation
