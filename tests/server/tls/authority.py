"""An authority that signs certificates of servers and clients, in files of a test's folder."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
_serials = count(1)


class Authority:
    """Signs in a folder: the file `ca.pem` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        self.file = folder / "ca.pem"
        own = self._certificate(self._name, self._key, (-DAY, DAY), is_authority=True)
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def sign(
        self,
        name: str = "server",
        key: Any = None,
        valid: Sequence[timedelta] = (-DAY, DAY),
        into: str = "",
    ) -> int:
        """Write `INTO.pem` and `INTO.key`, by default of the name; returns the serial number."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(_name(name), key, valid)
        into = into or name
        pem(self.folder / f"{into}.key", key)
        (self.folder / f"{into}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        return certificate.serial_number

    def settings(self, name: str = "server") -> dict[str, str]:
        """The settings of a server with a signed certificate."""
        return {
            "tls_cert": str(self.folder / f"{name}.pem"),
            "tls_key": str(self.folder / f"{name}.key"),
        }

    def _certificate(
        self, name: x509.Name, key: Any, valid: Sequence[timedelta], is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(next(_serials))
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(address, critical=False)
            .sign(self._key, SHA256())
        )


def pem(file: Path, key: Any, encryption: Any = None) -> None:
    """Write a private key."""
    encryption = encryption or NoEncryption()
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
