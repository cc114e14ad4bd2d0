"""Configure logging: every line of a process goes through one handler, also uncaught exceptions."""

import logging
import sys
import threading
from functools import partial
from logging.config import dictConfig
from types import TracebackType
from typing import Any

from sruserve.server.logs.handler import LineHandler, LogFormat

log = logging.getLogger("sruserve.server")


class OwnStart(logging.Filter):
    """Drops uvicorn's line about a failed start, for which our own line has the reason."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every other line."""
        return record.msg != "Application startup failed. Exiting."


class NoValues(logging.Filter):
    """Hides the values in OpenTelemetry's lines about `OTEL_EXPORTER_OTLP_HEADERS`: keys."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every line, without its values."""
        record.args = ("(not shown)",) * len(record.args or ())
        return True


def set_up_logging(level: str, log_format: LogFormat) -> None:
    """Write all lines of this process in one format."""
    dictConfig(log_config(level, log_format))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback
    )


def set_up_own_logging(level: str, log_format: LogFormat) -> None:
    """Write the server's lines only, in a process whose other lines are another program's."""
    ours = logging.getLogger("sruserve")
    ours.handlers[:] = [LineHandler(log_format)]
    ours.setLevel(level.upper())
    ours.propagate = False


def report_failure(message: str) -> None:
    """Write why the process ends before it serves: a short line, unless lines are JSON."""
    for handler in logging.getLogger("sruserve").handlers:
        if isinstance(handler, LineHandler) and handler.as_json:
            log.critical("%s", message)
        else:
            handler.flush()
            print(f"error: {message}", file=sys.stderr)


def log_config(level: str, log_format: LogFormat) -> dict[str, Any]:
    """A `logging.config.dictConfig` for the server and all libraries inside it."""
    ours = {"handlers": ["lines"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"own_start": {"()": OwnStart}, "no_values": {"()": NoValues}},
        "handlers": {"lines": {"()": partial(LineHandler, log_format)}},
        "root": {"handlers": ["lines"], "level": "WARNING"},
        "loggers": {
            "sruserve": {**ours, "level": level.upper()},
            # our own lines already report uvicorn's sockets and processes
            "uvicorn.error": {**ours, "level": "WARNING", "filters": ["own_start"]},
            "opentelemetry.util.re": {"filters": ["no_values"]},
        },
    }


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    log.critical("an exception was not handled", exc_info=(kind, error or kind(), trace))
