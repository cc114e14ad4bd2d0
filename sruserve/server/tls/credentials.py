"""Read the server's certificate and key, and explain unfit ones."""

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePrivateKey,
)
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sruserve.model.files import read_regular
from sruserve.server.tls.strength import has_weak_key

_MAX_FILE_BYTES = 1 << 20
_PROTOCOLS = ["http/1.1"]
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_CURVES = (SECP256R1, SECP384R1, SECP521R1)  # those that clients accept
# OpenSSL's own choice has finite-field groups, whose keys a client need not even compute: one of
# ffdhe8192 costs the server 80 ms. `ssl` can set one group only, and every client must have this
# one (RFC 8446, section 9.1).
_GROUP = "prime256v1"
# Of OpenSSL 3.2; `ssl` does not name it, and older libraries ignore it.
_OP_NO_RX_CERTIFICATE_COMPRESSION = 1 << 33


class UnfitCertificate(ValueError):
    """A certificate or a key that cannot be used; the message names the setting and the fault."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the certificate with its chain, of its key, and of the CAs of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate with its chain, its private key, and the CAs of clients, all in PEM."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_ca: bytes | None = field(repr=False)
    serial: int
    begins: datetime
    ends: datetime

    @property
    def is_valid_now(self) -> bool:
        """Whether clients accept its dates."""
        return self.begins <= datetime.now(UTC) <= self.ends

    def __str__(self) -> str:
        """Its serial and dates, for the log."""
        return f"serial {self.serial:x}, valid from {self.begins:%Y-%m-%d} to {self.ends:%Y-%m-%d}"

    def new_context(self) -> ssl.SSLContext:
        """A context for HTTP. A client without a certificate passes; `TlsHandshake` marks it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ecdh_curve(_GROUP)
        context.set_alpn_protocols(_PROTOCOLS)
        _load_chain(context, self.chain + b"\n" + self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            # of a client over TLS 1.2, the cache of sessions keeps all certificates that it sends
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            # a session continues without a look at its client's certificate, which may have expired
            context.num_tickets = 0
            # a short message would become certificates beyond the limit of `TlsHandshake`
            context.options |= _OP_NO_RX_CERTIFICATE_COMPRESSION
            # each listed certificate is trusted, also an intermediate one, as gRPC's core does
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=self.client_ca.decode("latin-1"))
        return context


def read_credentials(files: TlsFiles) -> Credentials:
    """Read and check the files, each once; raises `UnfitCertificate`."""
    chain = _read(files.certificate, "SRUSERVE_TLS_CERT")
    key = _read(files.key, "SRUSERVE_TLS_KEY")
    certificate, *others = _certificates(chain, "SRUSERVE_TLS_CERT", files.certificate)
    private = _private_key(key, files.key)
    public = private.public_key()
    if certificate.public_key() != public:
        hint = "give the two files of one certificate"
        if any(other.public_key() == public for other in others):
            hint = "put the server's own certificate first in SRUSERVE_TLS_CERT"
        raise UnfitCertificate(
            f"SRUSERVE_TLS_KEY={files.key}: the key does not match the certificate; {hint}"
        )
    if not _signs(private):
        raise UnfitCertificate(
            f"SRUSERVE_TLS_KEY={files.key}: the key is damaged, its signatures are not those of "
            "the certificate; restore the file"
        )
    client_ca = None
    if files.client_ca is not None:
        client_ca = _read(files.client_ca, "SRUSERVE_TLS_CLIENT_CA")
        authorities = _certificates(client_ca, "SRUSERVE_TLS_CLIENT_CA", files.client_ca)
        if any(map(has_weak_key, authorities)):
            raise UnfitCertificate(
                f"SRUSERVE_TLS_CLIENT_CA={files.client_ca}: a key is too short; RSA needs 2,048 "
                "bits, an elliptic curve 224"
            )
    credentials = Credentials(
        chain,
        key,
        client_ca,
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    try:
        credentials.new_context()
    except ssl.SSLError as error:  # for example a key that is too short
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise UnfitCertificate(
            f"SRUSERVE_TLS_CERT={files.certificate}: OpenSSL refuses it: {reason}"
        ) from None
    return credentials


def _read(path: Path, variable: str) -> bytes:
    try:
        return read_regular(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise UnfitCertificate(f"{variable}={path}: cannot be read: {error.strerror}") from None


def _certificates(data: bytes, variable: str, path: Path) -> list[x509.Certificate]:
    certificates = []
    with suppress(ValueError):
        certificates = x509.load_pem_x509_certificates(data)
    if len(certificates) != data.count(_BEGIN):  # the parser skips one that is cut off
        certificates = []
    if not certificates:
        raise UnfitCertificate(
            f"{variable}={path}: should be one or more whole certificates in PEM"
        )
    return certificates


def _private_key(data: bytes, path: Path) -> RSAPrivateKey | EllipticCurvePrivateKey:
    variable = f"SRUSERVE_TLS_KEY={path}"
    try:
        # validating an RSA key takes up to a second, in which the event loop would wait
        key = load_pem_private_key(data, None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise UnfitCertificate(
            f"{variable}: the key is encrypted; decrypt it, for example by openssl pkey, and "
            "protect the file by its permissions"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UnfitCertificate(f"{variable}: should be a private key in PEM") from None
    if isinstance(key, RSAPrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, _CURVES)
    ):
        return key
    raise UnfitCertificate(
        f"{variable}: should be an RSA key, or one of the curves P-256, P-384 and P-521, which "
        "clients accept"
    )


def _signs(key: RSAPrivateKey | EllipticCurvePrivateKey) -> bool:
    """Whether the public part of a key accepts what its private part signs.

    Of an RSA key, OpenSSL compares only the modulus with that of the certificate.
    """
    message = b"sruserve"
    try:
        if isinstance(key, RSAPrivateKey):
            signature = key.sign(message, PKCS1v15(), SHA256())
            key.public_key().verify(signature, message, PKCS1v15(), SHA256())
        else:
            signature = key.sign(message, ECDSA(SHA256()))
            key.public_key().verify(signature, message, ECDSA(SHA256()))
    except (InternalError, InvalidSignature, ValueError):
        return False
    return True


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a chain and key that are in memory; `ssl` reads them from files only."""
    with open(os.memfd_create("tls", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)


def _no_password() -> str:
    return ""
