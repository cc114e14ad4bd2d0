"""The handler of all log records."""

import logging
import os
from functools import partial
from typing import Literal

from sruserve.server.logs.line_writer import LineWriter
from sruserve.server.logs.lines import JsonLines, TextLines

LogFormat = Literal["auto", "json", "text"]
STDOUT, STDERR = 1, 2
_MAX_WAITING = 1024  # lines
_FLUSH_SECONDS = 0.5


def writes_json(log_format: LogFormat, descriptor: int) -> bool:
    """Whether lines on a standard stream are JSON."""
    if log_format == "auto":
        return not os.isatty(descriptor)
    return log_format == "json"


class LineHandler(logging.Handler):
    """Writes records to standard error, in the format of `SRUSERVE_LOG_FORMAT`."""

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self.as_json = writes_json(log_format, STDERR)
        self.setFormatter(lines := JsonLines() if self.as_json else TextLines())
        self._writer = LineWriter(STDERR, _MAX_WAITING, partial(dropped_notice, lines))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except Exception:  # a record that cannot be formatted: a mistake of the code that logs it
            self._writer.write(f"a log line of {record.name} cannot be formatted")

    def flush(self) -> None:
        """Wait shortly until all records are written."""
        self._writer.flush(_FLUSH_SECONDS)


def dropped_notice(lines: logging.Formatter, count: int) -> str:
    """The line that tells that lines are missing."""
    name, level = "sruserve.logs", logging.WARNING
    message = "%d log lines before this one were dropped, because nobody read them"
    return lines.format(logging.LogRecord(name, level, "", 0, message, (count,), None))
