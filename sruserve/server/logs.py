"""One format for every log line, on standard error."""

import logging
from typing import Any


class PathOnly(logging.Filter):
    """Removes the query from a line of the access log, because it may contain keys."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every line."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                argument.partition("?")[0] if isinstance(argument, str) else argument
                for argument in record.args
            )
        return True


class OwnStart(logging.Filter):
    """Drops uvicorn's line about a failed start, for which our own line has the reason."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every other line."""
        return record.msg != "Application startup failed. Exiting."


def log_config(level: str) -> dict[str, Any]:
    """A `logging.config.dictConfig` for the server and for uvicorn inside it."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"path_only": {"()": PathOnly}, "own_start": {"()": OwnStart}},
        "formatters": {
            "line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            },
        },
        "loggers": {
            "sruserve": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            # our own lines already report uvicorn's sockets and processes
            "uvicorn.error": {
                "handlers": ["stderr"],
                "level": "WARNING",
                "propagate": False,
                "filters": ["own_start"],
            },
            "uvicorn.access": {
                "handlers": ["stderr"],
                "level": "INFO",
                "propagate": False,
                "filters": ["path_only"],
            },
        },
    }
