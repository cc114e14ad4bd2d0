"""TLS of the gRPC server, which asks for the certificate at each new connection."""

from typing import Any

import grpc

from sruserve.server.tls.certificates import Certificates
from sruserve.server.tls.credentials import Credentials


def server_credentials(certificates: Certificates) -> Any:
    """Credentials that follow the renewals of the certificates."""
    used = certificates.current

    def fetch() -> Any:
        """The new configuration, or None if it is the same; called on threads of gRPC's core."""
        nonlocal used
        if certificates.current is used:
            return None
        used = certificates.current
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), fetch, require_client_authentication=used.client_ca is not None
    )


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.chain)], root_certificates=credentials.client_ca
    )
