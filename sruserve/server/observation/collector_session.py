"""The HTTP session of the exporters: a collector's replies take little memory, whatever they are.

The client library reads and unpacks a whole reply, which may have no end. The exporters use its
status alone.
"""

import os
from contextlib import suppress
from typing import Any

import requests
from urllib3.exceptions import HTTPError

_MAX_BYTES = 64 << 10  # of a reply that is read so that its connection can be used again
# The exporters' own way to name a session, which knows how to sign requests.
_PROVIDERS = tuple(
    f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}CREDENTIAL_PROVIDER"
    for signal in ("", "TRACES_", "METRICS_")
)


class CollectorSession(requests.Session):
    """A session whose responses have no content."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request, and wait for the status of its reply."""
        response = super().request(*args, **{**kwargs, "stream": True})
        with suppress(HTTPError):  # it breaks off, or is late, after its status
            response.raw.read(_MAX_BYTES, decode_content=False)
        response.close()  # an open connection goes back to the pool only at a reply's end
        response._content = b""
        return response


def collector_session() -> CollectorSession | None:
    """A new session; None where a variable of OpenTelemetry names another."""
    return None if any(map(os.environ.get, _PROVIDERS)) else CollectorSession()
