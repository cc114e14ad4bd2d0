"""Every checkpoint format by its name in `--format`. A format's module is imported on demand."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sruserve.model.importers.format import FileFormat, Format

FORMATS = {
    "sru": "sruserve.model.importers.sru",
    "srupp": "sruserve.model.importers.srupp",
    "drqa": "sruserve.model.importers.drqa",
    "lrn": "sruserve.model.importers.lrn",
    "qrnn": "sruserve.model.importers.qrnn",
    "awd-qrnn": "sruserve.model.importers.awd_qrnn",
    "torch": "sruserve.model.importers.torch_rnn",
    "cnn": "sruserve.model.importers.cnn",
}

# Formats whose files describe the whole network, not only its tensors of any names.
FILE_FORMATS = {
    "keras": "sruserve.model.importers.keras.read",
    "onnx": "sruserve.model.importers.onnx.read",
    "lrn-tf": "sruserve.model.importers.lrn_tf.read",
}

# Formats of translation systems; their modules have the functions of a `TranslationFormat`.
TRANSLATION_FORMATS = {
    "flambe": "sruserve.model.importers.translation.flambe",
    "opennmt": "sruserve.model.importers.translation.opennmt",
}


def load_format(name: str) -> "Format":
    """Import the module that reads checkpoints of a format; see `Format` for its functions."""
    return cast("Format", import_module(FORMATS[name]))


def load_file_format(name: str) -> "FileFormat":
    """Import the module that reads the files of a format; see `FileFormat` for its function."""
    return cast("FileFormat", import_module(FILE_FORMATS[name]))
