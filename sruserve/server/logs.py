"""One format for every log line, on standard error."""

import logging
from typing import Any


class PathOnly(logging.Filter):
    """Takes the query out of a line of the access log: clients put keys there."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every line through."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                each.partition("?")[0] if isinstance(each, str) else each for each in record.args
            )
        return True


def log_config(level: str) -> dict[str, Any]:
    """A `logging.config.dictConfig` for the server and for uvicorn inside it."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"path_only": {"()": PathOnly}},
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
            # uvicorn tells of sockets and processes that our own lines already tell of
            "uvicorn.error": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
            "uvicorn.access": {
                "handlers": ["stderr"],
                "level": "INFO",
                "propagate": False,
                "filters": ["path_only"],
            },
        },
    }
