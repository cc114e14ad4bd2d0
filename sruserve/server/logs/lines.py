"""One line for each log record: JSON for machines, or text for people."""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

from sruserve.server.logs.escapes import escaped
from sruserve.server.logs.exceptions import describe_exception

_MAX_MESSAGE = 8000  # characters


def json_line(fields: dict[str, Any]) -> str:
    """Fields as one line of JSON in ASCII."""
    return json.dumps(fields, separators=(",", ":"))


def timestamp(seconds: float) -> str:
    """A time since the epoch in RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


class JsonLines(logging.Formatter):
    """A record as one line of JSON; an exception is one of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "worker": os.getpid(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = describe_exception(record.exc_info[1])
        return json_line(fields)


class TextLines(logging.Formatter):
    """A record as one line of text; the stack of an exception follows in further lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message, record.asctime = escaped(_message(record)), self.formatTime(record)
        line = self.formatMessage(record)
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + describe_exception(record.exc_info[1])
        return line


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.name == "asyncio":  # its further lines show objects, and what they were called with
        message = message.partition("\n")[0]
    return message.rstrip()[:_MAX_MESSAGE]
