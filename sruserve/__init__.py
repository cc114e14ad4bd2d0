"""sruserve: an inference server for trained recurrent networks.

`load` runs a model in this process, and `save` writes a model folder from a live module.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sruserve.api.async_model import AsyncModel
    from sruserve.api.generation import AsyncGeneration, Generation
    from sruserve.api.load import load
    from sruserve.api.model import Model
    from sruserve.api.results import (
        Alignment,
        Answer,
        Answers,
        Classification,
        Completion,
        Encoding,
        Regression,
        Score,
        Span,
        TaggedToken,
        Tagging,
        Translation,
    )
    from sruserve.api.stream import AsyncStream, Stream
    from sruserve.server.errors import ServeError
    from sruserve.tracing.save import save

__version__ = "0.1.0"
__all__ = [
    "Alignment",
    "Answer",
    "Answers",
    "AsyncGeneration",
    "AsyncModel",
    "AsyncStream",
    "Classification",
    "Completion",
    "Encoding",
    "Generation",
    "Model",
    "Regression",
    "Score",
    "ServeError",
    "Span",
    "Stream",
    "TaggedToken",
    "Tagging",
    "Translation",
    "load",
    "save",
]

# OpenMP's threads spin while they wait, which would delay a server's event loop, and makes a pass
# three times slower beside a busy neighbour on two cores. Its runtime reads the variable when torch
# is imported.
torch_came_first = "torch" in sys.modules and "GOMP_SPINCOUNT" not in os.environ
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# With AMX, oneDNN sums a row of bfloat16 in an order that depends on the batch and the threads. It
# reads the variable when it first computes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

_MODULES = {
    "api.async_model": ("AsyncModel",),
    "api.generation": ("AsyncGeneration", "Generation"),
    "api.load": ("load",),
    "api.model": ("Model",),
    "api.results": (
        "Alignment",
        "Answer",
        "Answers",
        "Classification",
        "Completion",
        "Encoding",
        "Regression",
        "Score",
        "Span",
        "TaggedToken",
        "Tagging",
        "Translation",
    ),
    "api.stream": ("AsyncStream", "Stream"),
    "server.errors": ("ServeError",),
    "tracing.save": ("save",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because most of them need torch."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
