"""HAProxy with TLS takes a renewed certificate at a reload: docs/operations.md#behind-haproxy."""

import re
import signal
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from cryptography import x509

from bench.serve.processes import free_port
from tests.deploy.test_rolling_restart import haproxy
from tests.server.observing import until
from tests.server.tls.authority import Authority

CONFIG = (Path(__file__).parents[2] / "deploy/haproxy.cfg").read_text()


def test_a_reload_of_haproxy_takes_the_renewed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file, port = tmp_path / "both.pem", free_port()
    first = renew(authority, file)
    text = CONFIG.replace("bind 127.0.0.1:8080", f"bind 127.0.0.1:{port} ssl crt {file}")
    for other in (8081, 8404):
        text = text.replace(f"127.0.0.1:{other}", f"127.0.0.1:{free_port()}")
    text = re.sub(r"10\.0\.0\.\d:800\d", "127.0.0.1:1", text).replace("/run/haproxy", str(tmp_path))
    (tmp_path / "haproxy.cfg").write_text(text)
    # -W: the main process, which gets the signals, and a worker, as in Debian's unit
    process = subprocess.Popen([haproxy(), "-W", "-f", str(tmp_path / "haproxy.cfg")])
    try:
        until(lambda: serial(port) == first)
        second = renew(authority, file)

        def reloaded() -> bool:
            process.send_signal(signal.SIGUSR2)  # the `ExecReload` of Debian's unit
            time.sleep(0.5)  # sent again, because one before the main process waits for it is lost
            return serial(port) == second

        until(reloaded)
    finally:
        process.terminate()
        process.wait()


def renew(authority: Authority, file: Path) -> int:
    """Sign another certificate into HAProxy's file; returns its serial number."""
    number = authority.sign("haproxy")
    parts = [(authority.folder / f"haproxy.{kind}").read_text() for kind in ("pem", "key")]
    file.write_text("".join(parts))
    return number


def serial(port: int) -> int | None:
    """The serial number of the certificate on a port; None if nothing answers yet."""
    with suppress(OSError):
        shown = ssl.get_server_certificate(("127.0.0.1", port))
        return x509.load_pem_x509_certificate(shown.encode()).serial_number
    return None
