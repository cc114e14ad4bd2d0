"""sruserve: an inference server for trained recurrent models of the SRU family.

`load` runs a model in this process, and `save` writes a model folder from a live module.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sruserve.api.load import load
    from sruserve.api.model import Model
    from sruserve.api.stream import Stream
    from sruserve.server.errors import ServeError
    from sruserve.tracing.save import save

__version__ = "0.1.0"
__all__ = ["Model", "ServeError", "Stream", "load", "save"]

# OpenMP's threads spin while they wait, so that one busy neighbour on two cores makes a pass three
# times slower. Its runtime reads the variable when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_MODULES = {
    "Model": "sruserve.api.model",
    "ServeError": "sruserve.server.errors",
    "Stream": "sruserve.api.stream",
    "load": "sruserve.api.load",
    "save": "sruserve.tracing.save",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because most of them need torch."""
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
