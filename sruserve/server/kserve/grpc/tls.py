"""TLS of the gRPC server, which asks for the certificate at each new connection."""

import time
from collections.abc import Callable
from typing import Any

import grpc

from sruserve.server.tls.certificates import Certificates
from sruserve.server.tls.credentials import Credentials

# A session lasts for days without a look at its client's certificate, which may have expired. It
# ends with the configuration that it began under, and the core has no option to offer none.
_SESSION_SECONDS = 60.0


def server_credentials(
    certificates: Certificates, clock: Callable[[], float] = time.monotonic
) -> Any:
    """Credentials that follow the renewals of the certificates. clock: monotonic seconds."""
    used, began = certificates.current, clock()

    def fetch() -> Any:
        """The new configuration, or None if it is the same; called on threads of gRPC's core."""
        nonlocal used, began
        is_old = used.client_ca is not None and clock() - began >= _SESSION_SECONDS
        if certificates.current is used and not is_old:
            return None
        used, began = certificates.current, clock()
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), fetch, require_client_authentication=used.client_ca is not None
    )


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.chain)], root_certificates=credentials.client_ca
    )
