"""Errors of a caller of this package, each with a stable `code`.

ModelError
├── ConfigError        config.json does not describe a network
├── CheckpointError    the weights do not fit the description, or are not plain tensors
├── FolderError        a model folder is incomplete or was changed
├── OptionError        an option of an import is missing or invalid
├── DTypeError         the device does not support the compute dtype
├── CaseError          `verify` cannot run a file of saved inputs
└── TextError          the vocabulary cannot express a text
"""

_BRIEF = 300  # characters of a library's message


class ModelError(ValueError):
    """An invalid argument or file; the message says what to change."""

    code = "invalid_model"

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return a foreign text as one line, with control characters escaped for terminals and logs."""
    if text.isprintable():
        return text
    line = "".join(" " if c.isspace() else c for c in text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def brief(error: BaseException) -> str:
    """Return the message of a library, which may quote a whole file, shortened in the middle."""
    text = str(error)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF // 2]} … {text[-_BRIEF // 2 :]}"


class ConfigError(ModelError):
    code = "invalid_config"


class CheckpointError(ModelError):
    code = "invalid_checkpoint"


class FolderError(ModelError):
    code = "invalid_folder"


class OptionError(ModelError):
    code = "missing_option"


class DTypeError(ModelError):
    code = "invalid_dtype"


class CaseError(ModelError):
    code = "invalid_case"


class TextError(ModelError):
    code = "invalid_text"


def faults() -> tuple[type[BaseException], ...]:
    """Return the types to catch where a failure must not end more than one request.

    A panic of a Rust library (tokenizers, cryptography, pydantic) derives from `BaseException`, as
    requests to stop do. Each library creates its own type at its first panic.
    """
    panics = (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException")
    return (Exception, *panics)
