"""A replica's process: the same as `sruserve serve`, but torch is imported before it is forked."""

import sys
from typing import Any

import sruserve.server.app  # noqa: F401  # torch, which all replicas share
from sruserve.server.run import serve as serve_settings
from sruserve.server.settings import load_settings


def serve(settings: dict[str, Any]) -> None:
    """Serve until SIGTERM. settings: by the names of their fields."""
    sys.exit(serve_settings(load_settings(**settings)))
