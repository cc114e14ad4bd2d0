"""Which of two media types an `Accept` header prefers, and which coding the other accepts."""

import pytest

from sruserve.server.http.media_range import accepts, prefers

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    "accept",
    [
        BROWSER,
        "text/html",
        "TEXT/HTML",
        "text/*",
        "text/html;level=1, application/json;q=0.9",
        "application/json;q=0.2, text/html ; q=0.3",
        "text/html;q=0.1, */*;q=0.0",
        "text/html" + ";" * 1015,
    ],
)
def test_a_header_that_ranks_html_first(accept: str) -> None:
    assert prefers(accept, "text/html", "application/json")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/json, text/html",
        "application/json, text/html;q=0.9",
        "text/html;q=0",
        "text/html;q=2",
        "text/html;q=nan",
        "text/html;q=",
        "text/html;q=0, */*",
        ",;=,;q",
        "image/png",
        "," * 1000 + "text/html",
        "text/html" + ";" * 1016,
        "text/html," * 103,
    ],
)
def test_a_header_that_does_not(accept: str) -> None:
    assert not prefers(accept, "text/html", "application/json")


@pytest.mark.parametrize("header", ["gzip", "GZIP", "deflate, gzip;q=0.5, br", " gzip ; q=1"])
def test_a_coding_that_is_accepted(header: str) -> None:
    assert accepts(header, "gzip")


@pytest.mark.parametrize(
    "header", ["", "br", "gzip;q=0", "gzip;q=0.0, br", "x-gzip", "gzip;q=a", "gzip" + "," * 1021]
)
def test_a_coding_that_is_not(header: str) -> None:
    assert not accepts(header, "gzip")
