"""What a caller of this package can get wrong, each with a code that stays the same.

ModelError
├── ConfigError        a config.json that describes no network
├── CheckpointError    weights that do not fit the description, or are no plain weights
├── FolderError        a model folder that is incomplete or was altered
├── OptionError        an import that would have to guess
├── DTypeError         a compute dtype that the device does not have
├── CaseError          a file of saved inputs that `verify` cannot run
└── TextError          a text that the vocabulary cannot express
"""


class ModelError(ValueError):
    """A mistake in what was given; the message says what to change."""

    code = "invalid_model"

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text that may be another's, in one line, without what a terminal or a log would obey."""
    if text.isprintable():
        return text
    line = "".join(" " if c.isspace() else c for c in text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


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
    """What `except` catches where a failure must not end more than one request.

    A panic of a library in Rust (tokenizers, cryptography, pydantic) derives from `BaseException`,
    as requests to stop do, and each library makes a type of its own when it first panics.
    """
    panics = (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException")
    return (Exception, *panics)
