"""What stops `sruserve.save`: a module that a model folder cannot describe, or an example."""

from sruserve.model.errors import ModelError
from sruserve.tracing.source import Place


class TracingError(ModelError):
    """The module cannot be saved; the message names the operation and its line of source.

    place: the line; None if the module as a whole is at fault.
    """

    code = "not_servable"

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message if place is None else f"{message} ({place})")
        self.place = place


class Unserved(Exception):
    """Why a model folder cannot express one operation, as a clause; its place is added later."""


class DifferentAnswers(TracingError):
    """The folder's answers are not those of the module."""

    code = "different_answers"
