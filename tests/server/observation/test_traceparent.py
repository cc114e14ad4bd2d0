"""`traceparent` as W3C Trace Context defines it; an invalid one is as good as none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.observation.traceparent import TraceParent, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", PARENT),
        (f"00-{TRACE}-{SPAN}-00", PARENT._replace(sampled=False)),
        (f"00-{TRACE}-{SPAN}-ff", PARENT),
        (f"cc-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-later-versions-add", PARENT),
        (f" 00-{TRACE}-{SPAN}-01\t", PARENT),
    ],
)
def test_a_valid_header_names_the_span_of_the_client(header: str, parent: TraceParent) -> None:
    assert read_traceparent(header) == parent


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "-",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{SPAN}-{TRACE}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_any_other_header_is_ignored(header: str | None) -> None:
    assert read_traceparent(header) is None


@given(st.text())
def test_no_text_raises(header: str) -> None:
    assert read_traceparent(header) is None
