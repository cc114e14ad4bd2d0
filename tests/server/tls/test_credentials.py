"""Unfit certificates and keys are refused, each with a message that says what to change."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from sruserve.server.settings import SettingsError, load_settings
from sruserve.server.tls.credentials import TlsFiles, read_credentials
from tests.server.tls.authority import DAY, Authority, pem


@pytest.fixture
def own(tmp_path: Path) -> Authority:
    """An authority whose files a test may break."""
    authority = Authority(tmp_path)
    authority.sign()
    return authority


def refusal(authority: Authority, **settings: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load_settings(**authority.settings() | settings)
    return str(refused.value)


def test_a_fit_pair_is_read_with_its_serial_and_dates(own: Authority) -> None:
    serial = own.sign("other")
    credentials = read_credentials(TlsFiles(own.folder / "other.pem", own.folder / "other.key"))
    assert credentials.serial == serial
    assert credentials.is_valid_now
    assert credentials.ends - credentials.begins == 2 * DAY
    assert "PRIVATE" not in repr(credentials)


def test_a_key_of_another_certificate_is_refused(own: Authority) -> None:
    own.sign("other")
    message = refusal(own, tls_key=str(own.folder / "other.key"))
    assert "SRUSERVE_TLS_KEY" in message
    assert "does not match" in message


def test_a_damaged_rsa_key_is_refused(own: Authority) -> None:
    key = rsa.generate_private_key(65537, 2048)
    own.sign(key=key)
    n = key.private_numbers()
    damaged = rsa.RSAPrivateNumbers(
        n.p, n.q, n.d ^ 4, n.dmp1 ^ 4, n.dmq1 ^ 4, n.iqmp, n.public_numbers
    )
    pem(own.folder / "server.key", damaged.private_key(unsafe_skip_rsa_key_validation=True))
    assert "the key is damaged" in refusal(own)


def test_a_chain_that_begins_with_its_authority_is_refused_with_the_right_order(
    own: Authority,
) -> None:
    server = own.folder / "server.pem"
    server.write_bytes(own.file.read_bytes() + server.read_bytes())
    assert "put the server's own certificate first" in refusal(own)


def test_an_encrypted_key_is_refused(own: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    own.sign(key=key)
    pem(own.folder / "server.key", key, BestAvailableEncryption(b"secret word"))
    assert "the key is encrypted" in refusal(own)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (rsa.generate_private_key(65537, 1024), "key too small"),
        (ed25519.Ed25519PrivateKey.generate(), "P-256"),
        (ec.generate_private_key(ec.SECP256K1()), "P-256"),
    ],
    ids=["short", "Ed25519", "unusual curve"],
)
def test_a_key_that_clients_do_not_accept_is_refused(own: Authority, key: Any, reason: str) -> None:
    own.sign(key=key)
    assert reason in refusal(own)


def test_an_authority_whose_key_is_short_is_refused(own: Authority) -> None:
    own.sign("short", rsa.generate_private_key(65537, 1024))
    assert "a key is too short" in refusal(own, tls_client_ca=str(own.folder / "short.pem"))


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "No such file"),
        ("folder", "Is a directory"),
        ("device", "not a regular file"),
        ("pipe", "not a regular file"),
        ("endless", "the limit is"),
        ("empty", "in PEM"),
        ("other", "in PEM"),
    ],
)
def test_a_file_that_cannot_be_one_is_refused(
    own: Authority, setting: str, kind: str, reason: str
) -> None:
    file = own.folder / kind
    match kind:
        case "folder":
            file.mkdir()
        case "device":
            file.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(file)
        case "endless":
            file.touch()
            os.truncate(file, 1 << 40)
        case "empty":
            file.touch()
        case "other":
            file.write_bytes(os.urandom(1000))
    message = refusal(own, **{setting: str(file)})
    assert message.startswith(f"SRUSERVE_{setting.upper()}={file}: ")
    assert reason in message


def test_a_certificate_that_is_cut_off_is_refused(own: Authority) -> None:
    server = own.folder / "server.pem"
    server.write_bytes(server.read_bytes() + own.file.read_bytes()[:200])
    assert "whole certificates" in refusal(own)


@pytest.mark.parametrize("lacking", ["tls_cert", "tls_key"])
def test_a_certificate_and_its_key_belong_together(own: Authority, lacking: str) -> None:
    settings = {**own.settings(), "tls_client_ca": str(own.file)}
    del settings[lacking]
    with pytest.raises(SettingsError, match=f"SRUSERVE_{lacking.upper()} is not set"):
        load_settings(**settings)


def test_a_certificate_that_has_expired_is_served_and_is_not_valid(own: Authority) -> None:
    own.sign(valid=(-2 * DAY, timedelta(seconds=-1)))
    settings = load_settings(**own.settings())
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    assert not read_credentials(TlsFiles(settings.tls_cert, settings.tls_key)).is_valid_now
