"""Origins in a setting."""

import pytest

from sruserve.server.origin_list import read_origins


@pytest.mark.parametrize(
    ("listed", "origins"),
    [
        ("", set()),
        ("*", {"*"}),
        ("https://app.example.com", {"https://app.example.com"}),
        (" https://App.Example.com/ ,http://b:8080,", {"https://app.example.com", "http://b:8080"}),
        ("https://a.example:443,http://a.example:80", {"https://a.example", "http://a.example"}),
        ("http://a.example:443", {"http://a.example:443"}),
        ("http://[::1]:3000", {"http://[::1]:3000"}),
        ("null, capacitor://localhost", {"null", "capacitor://localhost"}),
        ("https://xn--bcher-kva.example", {"https://xn--bcher-kva.example"}),
    ],
)
def test_origins_are_read_as_browsers_send_them(listed: str, origins: set[str]) -> None:
    assert read_origins(listed) == origins


@pytest.mark.parametrize("origin", ["a", "a.example", "https://", "//a", "https://me@a", "file:/x"])
def test_what_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        read_origins(f"https://app.example.com,{origin}")
