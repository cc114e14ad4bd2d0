"""One examination from its options to its findings."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sruserve.check.address import Address
from sruserve.check.checks.examination import Check, Examination
from sruserve.check.errors import Misuse
from sruserve.check.examine import Checked, examine, exit_code, max_requests
from sruserve.check.protocols.detect import PROTOCOLS, detect
from sruserve.check.samples import TEXTS, Sample, read_texts
from sruserve.check.transport import Access, Transport


@dataclass(frozen=True)
class Options:
    """What a user may choose. urls: the server, and optionally another replica of it.

    protocol: a name of `PROTOCOLS`, or None to ask the server. key: empty if it needs none.
    """

    urls: tuple[str, ...]
    protocol: str | None = None
    model: str | None = None
    key: str = ""
    tolerance: float = 0.0
    timeout_seconds: float = 60.0
    concurrency: int = 8
    inputs: Path | None = None
    ca_file: Path | None = None


class Outcome(NamedTuple):
    """The findings, and what was examined. requests: the number that was sent."""

    urls: tuple[str, ...]
    protocol: str
    model: str
    tolerance: float
    requests: int
    checked: Sequence[Checked]

    @property
    def exit_code(self) -> int:
        return exit_code(self.checked)


def check_server(
    options: Options, announce: Callable[[str], None], begin: Callable[[Check], None]
) -> Outcome:
    """Examine a server. Raises `CheckError` if it cannot be examined at all.

    announce: called with the bound of requests before the first one. begin: before each check.
    """
    texts = TEXTS if options.inputs is None else read_texts(options.inputs)
    access = Access(options.key, options.timeout_seconds, _tls(options.ca_file))
    bound = max_requests(len(texts))
    addresses = [Address.parse(url) for url in options.urls]
    replicas = [Transport(address, access, bound) for address in addresses]
    to_each = " to each" if len(addresses) > 1 else ""
    announce(
        f"checking {' and '.join(map(str, addresses))}: at most {bound} requests{to_each}, "
        f"{options.concurrency} at a time"
    )
    try:
        name = options.protocol or detect(replicas[0])
        server = PROTOCOLS[name](replicas, options.model)
        samples = server.samples(texts)
        if options.inputs is not None and not any(map(_has_text, samples)):
            raise Misuse(f"model {server.model} reads numbers; leave --inputs out")
        examination = Examination(server, samples, options.concurrency, options.tolerance)
        checked = examine(examination, begin)
    finally:
        for replica in replicas:
            replica.close()
    requests = sum(replica.requests for replica in replicas)
    urls = tuple(map(str, addresses))
    return Outcome(urls, name, server.model, options.tolerance, requests, checked)


def _has_text(sample: Sample) -> bool:
    return any(isinstance(value, str) for value in sample.values.values())


def _tls(ca_file: Path | None) -> ssl.SSLContext | None:
    """A context that trusts one authority alone; None: the system's."""
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise Misuse(f"{ca_file} has no certificate in PEM") from None
    except OSError as error:
        raise Misuse(f"cannot read {ca_file}: {error.strerror}") from None
