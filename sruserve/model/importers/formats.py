"""Every checkpoint format by its name in `--format`. A format's module is imported on demand."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sruserve.model.importers.format import Format

FORMATS = {
    "sru": "sruserve.model.importers.sru",
    "srupp": "sruserve.model.importers.srupp",
    "drqa": "sruserve.model.importers.drqa",
    "lrn": "sruserve.model.importers.lrn",
    "qrnn": "sruserve.model.importers.qrnn",
    "awd-qrnn": "sruserve.model.importers.awd_qrnn",
    "torch": "sruserve.model.importers.torch_rnn",
}


def load_format(name: str) -> "Format":
    """Import the module that reads checkpoints of a format; see `Format` for its functions."""
    return cast("Format", import_module(FORMATS[name]))
