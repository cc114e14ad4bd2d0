"""Servers with TLS and API keys: an own authority is trusted, and the key is never shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sruserve.cli import app
from tests.check.conftest import DEMO
from tests.check.fakes import FakeServer, TensorServer, running
from tests.server.processes import serving
from tests.server.tls.authority import Authority

KEY = "a-key-of-a-tenant-that-is-a-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    authority.sign("server")
    return authority


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[str]:
    """A server of one model with TLS and a key."""
    settings = authority.settings() | {"api_keys": f"acme:{KEY}"}
    with serving(DEMO / "question-type", **settings) as (client, _):
        yield str(client.base_url)


def check(url: str, *options: str, key: str = "") -> Result:
    return CliRunner().invoke(app, ["check", url, *options], env={"SRUSERVE_CHECK_API_KEY": key})


def test_an_own_authority_and_a_key_of_the_environment_open_a_server(
    secure: str, authority: Authority
) -> None:
    done = check(secure, "--ca-file", str(authority.file), key=KEY)
    assert done.exit_code == 0, done.output
    assert "split     passes" in done.stdout
    assert KEY not in done.output


def test_a_key_may_be_an_argument(secure: str, authority: Authority) -> None:
    done = check(secure, "--ca-file", str(authority.file), "--api-key", KEY, "--json")
    assert done.exit_code == 0, done.output
    assert KEY not in done.output


def test_a_certificate_of_an_unknown_authority_is_refused(secure: str) -> None:
    done = check(secure, key=KEY)
    assert done.exit_code == 2
    assert "is not trusted" in done.stderr
    assert "--ca-file" in done.stderr


@pytest.mark.parametrize("key", ["", "another-key"])
def test_a_missing_or_wrong_key_says_how_to_give_one(
    secure: str, authority: Authority, key: str
) -> None:
    done = check(secure, "--ca-file", str(authority.file), key=key)
    assert done.exit_code == 2
    assert "401" in done.stderr
    assert "SRUSERVE_CHECK_API_KEY" in done.stderr


def test_plain_http_to_a_server_with_tls_and_the_reverse_are_explained(secure: str) -> None:
    assert check(secure.replace("https://", "http://")).exit_code == 2
    with running(TensorServer()) as plain:
        done = check(plain.url.replace("http://", "https://"))
    assert done.exit_code == 2
    assert "use http://" in done.stderr


class Echoing(FakeServer):
    """Repeats the key in every error, and in what is no JSON."""

    def answer(self, method: str, path: str, body: object) -> object:
        return 403, {"error": {"message": f"refused: {self.headers[-1]['authorization']}"}}


def test_a_server_that_repeats_the_key_does_not_make_us_show_it() -> None:
    with running(Echoing()) as server:
        done = check(server.url, key=KEY)
    assert done.exit_code == 2
    assert "Bearer ***" in done.stderr
    assert KEY[:8] not in done.output


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown() -> None:
    done = check("http://127.0.0.1:1", key="schlüssel")
    assert done.exit_code == 2
    assert "API key" in done.stderr
    assert "schl" not in done.output


@pytest.mark.parametrize("content", [b"", b"no certificate"])
def test_a_file_that_is_no_authority_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ca.pem"
    assert check("https://127.0.0.1:1", "--ca-file", str(file)).exit_code == 2
    file.write_bytes(content)
    done = check("https://127.0.0.1:1", "--ca-file", str(file))
    assert done.exit_code == 2
    assert "ca.pem" in done.stderr
