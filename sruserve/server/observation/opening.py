"""Open what observes the requests of a process, as the settings say."""

import time

from sruserve.server.observation.observer import Consumer, RequestObserver
from sruserve.server.observation.request_log import RequestLog
from sruserve.server.settings import Settings

CLOSE_SECONDS = 3.0  # for lines and spans that wait when the server stops
_LINES_SECONDS = 0.5  # of these, for lines that nobody may read


class Observers:
    """The observer of requests with all that it feeds.

    requests: None: requests are neither logged nor traced.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` if a variable of OpenTelemetry is invalid."""
        self.requests: RequestObserver | None = None
        self._log: RequestLog | None = None
        consumers: list[Consumer] = []
        self._exports = None
        if settings.traces != "off":
            from sruserve.server.observation.otlp import Exports  # needs the extra `otel`

            self._exports = Exports()
            consumers += self._exports.consumers
        if settings.access_log:
            self._log = RequestLog(settings.log_format, settings.log_level)
            consumers.append(self._log)  # after the spans, whose trace it names
        if consumers:
            self.requests = RequestObserver(consumers)
            self.requests.start()

    def close(self) -> None:
        """Write and send what waits, within `CLOSE_SECONDS`."""
        deadline = time.monotonic() + CLOSE_SECONDS
        if self.requests is not None:
            self.requests.close(CLOSE_SECONDS / 3)
        if self._log is not None:
            self._log.close(_LINES_SECONDS)
        if self._exports is not None:
            self._exports.close(max(0.0, deadline - time.monotonic()))
