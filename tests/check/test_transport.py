"""Requests are counted, bounded in number and time, and end when the transport is closed."""

import threading

import pytest

from sruserve.check.address import Address
from sruserve.check.errors import CheckError, NoAnswer, Refused
from sruserve.check.transport import Access, Transport, _wait_seconds
from tests.check.fakes import TensorServer, running
from tests.check.hostile import answering, is_silent


def test_no_more_requests_are_sent_than_announced() -> None:
    with running(TensorServer()) as server:
        transport = Transport(Address.parse(server.url), Access(), max_requests=2)
        transport.get("/v2")
        transport.get("/v2")
        with pytest.raises(NoAnswer, match="2 announced requests are used up"):
            transport.get("/v2")
    assert len(server.sent) == transport.requests == 2


def test_closing_ends_the_requests_that_run_and_refuses_later_ones() -> None:
    connected = threading.Event()
    errors: list[CheckError] = []
    with answering(is_silent) as url:
        transport = Transport(Address.parse(url), Access(timeout_seconds=600), 10)

        def ask() -> None:
            try:
                transport.post("/v1/classify", {}, connected.set)
            except CheckError as error:
                errors.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        assert connected.wait(60)
        transport.close()
        asking.join(60)
        assert not asking.is_alive()
        with pytest.raises(NoAnswer, match="stopped"):
            transport.get("/v1/models")
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (None, 1),
        ("2", 2),
        ("3600", 5),
        ("inf", 5),
        ("nan", 0.1),
        ("-1", 0.1),
        ("0", 0.1),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1),
    ],
)
def test_the_wait_that_a_server_asks_for_is_bounded(
    retry_after: str | None, seconds: float
) -> None:
    assert _wait_seconds(retry_after) == seconds


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("http://localhost", ("http", "localhost", 80, ""), "http://localhost:80"),
        ("https://a.example/", ("https", "a.example", 443, ""), "https://a.example:443"),
        ("http://[::1]:9/v1", ("http", "::1", 9, ""), "http://[::1]:9"),
        ("http://a:9/x/v2/", ("http", "a", 9, "/x"), "http://a:9/x"),
    ],
)
def test_an_address_has_host_port_and_the_path_before_the_protocol(
    url: str, address: tuple[str, str, int, str], shown: str
) -> None:
    parsed = Address.parse(url)
    assert tuple(parsed) == address
    assert str(parsed) == shown


@pytest.mark.parametrize("url", ["http://a/\u00e9", "http://a/\x7f", "http://a b/"])
def test_an_address_with_other_characters_is_refused(url: str) -> None:
    with pytest.raises(CheckError):
        Transport(Address.parse(url), Access(timeout_seconds=1), 1).get("/")


@pytest.mark.parametrize("status", [413, 422])
def test_a_refused_text_leads_to_the_option_for_others(status: int) -> None:
    assert "--inputs" in str(Refused(status, "the text is too long", "POST /v1/translate"))
