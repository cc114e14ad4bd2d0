"""Describe an exception in a log without the text of a request that it may quote."""

import traceback
from collections.abc import Iterator

from sruserve.server.logs.escapes import escaped

# Only these report the machine, the device or the file system. The message of any other, such as a
# `ValueError`, may quote a value of the request that it was raised for.
_MESSAGE_LOGGED = (OSError, RuntimeError, MemoryError)
_MAX_CHAINED, _MAX_FRAMES, _MAX_MESSAGE = 8, 64, 1000


def describe_exception(error: BaseException) -> str:
    """The stacks and types of an exception and its causes, the first cause first."""
    return "\nwhich led to:\n".join(_describe(each) for each in reversed(list(_chain(error))))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MAX_CHAINED):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    message = escaped(str(error)[:_MAX_MESSAGE]) if isinstance(error, _MESSAGE_LOGGED) else ""
    lines = "".join(traceback.format_list(frames))
    return f"Traceback (most recent call last):\n{lines}{name}{message and f': {message}'}"
