"""One format for every log line, on standard error."""

from typing import Any


def log_config(level: str) -> dict[str, Any]:
    """A `logging.config.dictConfig` for the server and for uvicorn inside it."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
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
            "uvicorn.access": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        },
    }
