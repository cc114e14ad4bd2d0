"""The certificate of new connections, renewed on SIGHUP."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sruserve.server.errors import NoProcess
from sruserve.server.offload import run_in_thread
from sruserve.server.tls.credentials import (
    Credentials,
    TlsFiles,
    UnfitCertificate,
    read_credentials,
)

log = logging.getLogger("sruserve.server")


class Certificates:
    """The certificate of new connections. Connections that are open keep the one that they have.

    current: what gRPC's new connections get.
    context: what HTTP's new connections get.
    credentials: those of the process that started this one; None: those of the files.
    """

    def __init__(self, files: TlsFiles, credentials: Credentials | None = None) -> None:
        self._files = files
        self._is_due, self._is_copy = False, credentials is not None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._report: Callable[[datetime], None] = lambda _: None
        self._use(credentials or read_credentials(files))

    def __reduce__(self) -> Any:
        """Copy the credentials to a worker: the files may be unfit when it starts."""
        return Certificates, (self._files, self.current)

    def describe(self) -> None:
        """Log the certificate in force."""
        if self.current.is_valid_now:
            log.info("TLS certificate: %s", self.current)
        else:
            log.error(
                "the TLS certificate is not valid now, so clients will refuse it: %s; renew it, "
                "then send SIGHUP",
                self.current,
            )

    def renew(self) -> bool:
        """Read the files again; if they are unfit, the old certificate stays in force."""
        try:
            credentials = read_credentials(self._files)
            if not credentials.is_valid_now:
                raise UnfitCertificate(f"the new one is not valid now: {credentials}")
            if credentials == self.current:
                if not self._is_copy:
                    log.info("the TLS certificate is unchanged: %s", credentials)
                return True
            self._use(credentials)
        except (ValueError, OSError) as error:
            log.error("the TLS certificate is not renewed (%s): %s", self.current, error)
            return False
        log.info("renewed the TLS certificate: %s", credentials)
        return True

    def _use(self, credentials: Credentials) -> None:
        self.current, self.context = credentials, credentials.new_context()
        self._report(credentials.ends)

    def report_to(self, report: Callable[[datetime], None]) -> None:
        """Report when the certificate ends, now and after each renewal."""
        self._report = report
        report(self.current.ends)

    def on_signal(self, *_: object) -> None:
        """Renew soon. While models are loaded, that is when the server starts to serve."""
        self._is_due = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._begin)

    def start(self) -> None:
        """Heed signals on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._is_due |= self._is_copy  # the files may have changed since the copy was made
        self._begin()

    def stop(self) -> None:
        """Ignore signals, because the event loop ends."""
        self._loop = None

    def _begin(self) -> None:
        if self._is_due and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while self._is_due:
            self._is_due = False
            try:
                await run_in_thread("certificates", self.renew)  # a file system may be slow
            except NoProcess:
                self.renew()
