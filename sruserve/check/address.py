"""The address of a server, as a user gives it."""

from typing import NamedTuple, Self
from urllib.parse import urlsplit

from sruserve.check.errors import Misuse


class Address(NamedTuple):
    """Where a server listens. prefix: the path before `/v1` or `/v2`, without a last slash."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL of http or https. A path that ends with `/v1` or `/v2` loses that part."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise Misuse(f"the URL is invalid: {error}") from None
        if parts.username is not None or parts.password is not None:
            raise Misuse("the URL contains a password; use SRUSERVE_CHECK_API_KEY for a key")
        if parts.scheme not in ("http", "https") or not host:
            raise Misuse(f"{url!r} is no address of a server; use http://HOST:PORT or https://HOST")
        if parts.query or parts.fragment:
            raise Misuse("the URL has a query or fragment; use the address of the server alone")
        if not parts.path.isascii() or not parts.path.replace(" ", "\n").isprintable():
            raise Misuse("the path of the URL has characters that need percent encoding")
        prefix = parts.path.rstrip("/")
        if prefix.endswith(("/v1", "/v2")):
            prefix = prefix[:-3].rstrip("/")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"
