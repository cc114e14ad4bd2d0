"""Every origin by the name that `--format` gives it. Imports nothing until one is wanted."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sruserve.model.importers.origin import Origin

ORIGINS = {
    "sru": "sruserve.model.importers.sru",
    "srupp": "sruserve.model.importers.srupp",
    "drqa": "sruserve.model.importers.drqa",
    "lrn": "sruserve.model.importers.lrn",
    "qrnn": "sruserve.model.importers.qrnn",
    "awd-qrnn": "sruserve.model.importers.awd_qrnn",
    "torch": "sruserve.model.importers.torch_rnn",
}


def origin(name: str) -> "Origin":
    """The module that reads checkpoints of that origin; see `Origin` for what it has."""
    return cast("Origin", import_module(ORIGINS[name]))
