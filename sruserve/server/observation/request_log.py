"""One line for each request, on standard output."""

import logging
import os
from functools import partial
from typing import Any

from sruserve.server.logs.handler import STDOUT, LogFormat, dropped_notice, writes_json
from sruserve.server.logs.line_writer import LineWriter
from sruserve.server.logs.lines import JsonLines, TextLines, json_line, timestamp
from sruserve.server.observation.observation import Observation

LOGGER = "sruserve.requests"
_MAX_WAITING = 8192  # lines, of about 400 bytes
_LEVELS = {"error": logging.ERROR, "refused": logging.WARNING}  # of other outcomes: INFO
_TEXT = TextLines()

log = logging.getLogger("sruserve.server")


class RequestLog:
    """Writes a line for each request that is severe enough.

    level: the least severe one.
    """

    def __init__(self, log_format: LogFormat, level: str) -> None:
        self._as_json = writes_json(log_format, STDOUT)
        self._least = logging.getLevelNamesMapping()[level.upper()]
        lines = JsonLines() if self._as_json else _TEXT
        self._writer = LineWriter(STDOUT, _MAX_WAITING, partial(dropped_notice, lines), _tell)
        self._worker = os.getpid()

    def __call__(self, observation: Observation) -> None:
        """Write the line of a request that has ended."""
        level = _LEVELS.get(observation.outcome, logging.INFO)
        if level >= self._least:
            fields = request_fields(observation, level, self._worker)
            line = json_line(fields) if self._as_json else _text(observation, fields, level)
            self._writer.write(line)

    def close(self, seconds: float) -> None:
        """Wait until all lines are written, at most some time."""
        self._writer.flush(seconds)


def request_fields(observation: Observation, level: int, worker: int) -> dict[str, Any]:
    """The fields of the line of a request, as `docs/logs-and-traces.md` describes them."""
    described = observation.described
    return {
        "time": timestamp(observation.ended_ns / 1e9),
        "level": logging.getLevelName(level).lower(),
        "logger": LOGGER,
        "message": "request",
        "worker": worker,
        "request_id": described.request_id,
        "trace_id": f"{observation.trace_id:032x}" if observation.trace_id else None,
        "protocol": described.protocol,
        "method": described.method,
        "route": observation.route,
        "model": observation.model,
        "status": described.status,
        "outcome": observation.outcome,
        "error": observation.reason,
        "seconds": round(observation.seconds, 6),
        "queue_seconds": _rounded(observation.queue_seconds),
        "input_tokens": observation.input_tokens,
        "output_tokens": observation.output_tokens,
        "characters": observation.characters,
    }


def _tell(error: OSError | None) -> None:
    """Log on standard error that lines are lost, and when they no longer are."""
    if error is None:
        log.warning("the lines of requests are written to standard output again")
    else:
        log.error(
            "the lines of requests are lost, because standard output cannot be written: %s; make "
            "room, or restart its reader",
            error.strerror,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _text(observation: Observation, fields: dict[str, Any], level: int) -> str:
    """The line for people."""
    what = [fields["method"] or fields["protocol"], fields["route"], fields["status"]]
    line = " ".join(str(part) for part in what if part is not None)
    line += f" {fields['error'] or fields['outcome']} {fields['model']}"
    line += f" {1e3 * fields['seconds']:.1f} ms"
    if (queued := fields["queue_seconds"]) is not None:
        line += f", queued {1e3 * queued:.1f} ms"
    line += f" [{fields['request_id']}]"
    record = logging.LogRecord(LOGGER, level, "", 0, "%s", (line,), None)
    record.created, record.msecs = observation.ended_ns / 1e9, observation.ended_ns // 10**6 % 1000
    return _TEXT.format(record)
