"""The tree of errors at the top of its file is the tree in the code, and HTTP knows all of it."""

import re
from itertools import pairwise

import pytest

import sruserve.server.app  # noqa: F401  the parts of the server define all errors
from sruserve.server import errors
from sruserve.server.errors import (
    DeadlineExceeded,
    InvalidRequest,
    OutOfDeviceMemory,
    Overloaded,
    RateLimited,
    Refused,
    ServeError,
    TooManyAtOnce,
    Unauthorized,
    UnfitInput,
    WrongStep,
)
from sruserve.server.http.error_mapping import error_fields, headers_of, status_of
from sruserve.server.http.errors import MethodNotAllowed, UpgradeRequired
from sruserve.server.kserve.errors import explain


def drawn() -> list[tuple[int, str, str]]:
    """(depth, name, rest of the line) of every line of the tree."""
    rows = re.findall(r"^([│├└─ ]*)([A-Z]\w+) *(.*)$", errors.__doc__ or "", re.MULTILINE)
    first = next(i for i, row in enumerate(rows) if row[1] == "ServeError")
    return [(len(indent) // 4, name, rest) for indent, name, rest in rows[first:]]


def subclasses(of: type[ServeError]) -> set[type[ServeError]]:
    return {of}.union(*(subclasses(each) for each in of.__subclasses__()))


ERRORS = sorted(
    subclasses(ServeError) - {ServeError, Refused}, key=lambda error: error.__qualname__
)


def test_the_tree_draws_every_error_below_its_own_parent_with_its_code() -> None:
    above: list[str] = []
    for depth, name, rest in drawn():
        error = getattr(errors, name)
        parents = [base.__name__ for base in error.__bases__ if issubclass(base, ServeError)]
        assert parents == above[depth - 1 : depth], name
        above = [*above[:depth], name]
        if rest and error is not UnfitInput:
            assert rest == error.code


def test_the_last_error_below_each_parent_ends_its_branch() -> None:
    lines = [line for line in (errors.__doc__ or "").split("\n") if "── " in line]
    for line, after in pairwise([*lines, ""]):
        at = line.index("── ") - 1
        goes_on = after[at : at + 1] in ("├", "└", "│")
        assert line[at] == ("├" if goes_on else "└"), line


def test_triton_clients_get_the_text_of_what_is_full_beside_the_queue() -> None:
    full, busy = explain(Overloaded("too many calls")), explain(TooManyAtOnce("too many probes"))
    assert (full.code, full.message) == ("UNAVAILABLE", "Exceeds maximum queue size")
    assert (busy.code, busy.message) == ("RESOURCE_EXHAUSTED", "too many probes")


def test_the_tree_leaves_nothing_out() -> None:
    names = [name for _, name, _ in drawn()]
    own = {error for error in subclasses(ServeError) if error.__module__ == errors.__name__}
    assert sorted(names) == sorted(error.__name__ for error in own)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_a_status_over_http(error: type[ServeError]) -> None:
    assert 400 <= status_of(error) < 600
    assert error.code or error is UnfitInput


def test_no_error_knows_a_protocol() -> None:
    own = {name for error in subclasses(ServeError) for name in vars(error)}
    assert not own & {"status", "type", "headers", "body"}


def test_an_error_over_http_has_openais_type() -> None:
    kinds = (InvalidRequest("x"), Unauthorized("x"), RateLimited("x"), DeadlineExceeded())
    assert [error_fields(error)["type"] for error in kinds] == [
        "invalid_request_error",
        "authentication_error",
        "rate_limit_error",
        "server_error",
    ]
    assert error_fields(WrongStep(3, 2))["expected"] == 2


def test_the_headers_of_an_error_say_when_to_retry_and_what_is_allowed_instead() -> None:
    assert headers_of(RateLimited("x")) == {"retry-after": "1"}
    assert headers_of(WrongStep(3, 2)) == {"x-should-retry": "false"}
    assert headers_of(Unauthorized("x")) == {"www-authenticate": "Bearer"}
    assert headers_of(MethodNotAllowed("x", allowed=("GET", "HEAD"))) == {"allow": "GET, HEAD"}
    upgrade = {"upgrade": "websocket", "connection": "upgrade"}
    assert headers_of(UpgradeRequired("x")) == upgrade


def test_a_refusal_has_a_default_message() -> None:
    assert "SRUSERVE_QUEUE_TIMEOUT_MS" in DeadlineExceeded().message
    assert "shorter inputs" in str(OutOfDeviceMemory())
    assert Overloaded("the queue is full").message == "the queue is full"
    assert all(refusal().message for refusal in Refused.__subclasses__())
