"""Streams that forget, repeat or share are found; the same server without the fault passes."""

import pytest

from sruserve.check.findings import Verdict
from tests.check.conftest import Examine, findings
from tests.check.fakes import SequenceServer, StreamServer, running

STREAMED = ("split", "retry", "state")


def test_exact_streams_pass(examine: Examine) -> None:
    with running(StreamServer()) as server:
        by_check = findings(examine(server.url))
    assert {by_check[name].verdict for name in STREAMED} == {Verdict.PASSES}


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [
        ("forgets", "split", "ignores the state"),
        ("twice", "retry", "applied again"),
        ("races", "retry", "applied again"),
        ("refuses", "retry", "is refused"),
        ("in place", "state", "changes it in place"),
        ("shared", "state", "one state for several streams"),
    ],
)
def test_a_fault_of_streams_fails_its_check_with_the_cause(
    examine: Examine, fault: str, check: str, cause: str
) -> None:
    with running(StreamServer(fault)) as server:
        outcome = examine(server.url)
    by_check = findings(outcome)
    assert by_check[check].verdict is Verdict.FAILS, by_check[check]
    assert cause in by_check[check].reason
    assert by_check[check].example
    assert by_check[check].difference
    assert by_check["company"].verdict is Verdict.PASSES
    assert outcome.exit_code == 1


def test_states_too_large_for_a_client_leave_the_streams_that_the_server_holds(
    examine: Examine,
) -> None:
    with running(StreamServer("large")) as server:
        outcome = examine(server.url)
    by_check = findings(outcome)
    assert {by_check[name].verdict for name in STREAMED} == {Verdict.PASSES}
    assert by_check["split"].reason.startswith("chunks by held streams: 12 ")
    assert outcome.exit_code == 0


def test_a_server_without_held_streams_is_examined_by_its_tokens(examine: Examine) -> None:
    with running(StreamServer("tokens")) as server:
        by_check = findings(examine(server.url))
    assert by_check["split"].reason.startswith("chunks by state tokens: 12 ")
    assert by_check["state"].verdict is Verdict.PASSES
    assert by_check["retry"].verdict is Verdict.NOT_APPLICABLE
    assert "streams need Redis" in by_check["retry"].reason


def test_a_server_that_crashes_at_a_retry_has_not_refused_it(examine: Examine) -> None:
    with running(StreamServer("crashes")) as server:
        finding = findings(examine(server.url))["retry"]
    assert finding.verdict is Verdict.NO_ANSWER
    assert "out of range" in finding.reason


def test_replicas_that_do_not_share_states_fail(examine: Examine) -> None:
    with running(StreamServer("other")) as one, running(StreamServer("other")) as other:
        finding = findings(examine(one.url, other.url))["replica"]
    assert finding.verdict is Verdict.FAILS
    assert "keys" in finding.reason
    assert "the state has another key" in finding.difference


def test_replicas_that_share_states_pass(examine: Examine) -> None:
    one, other = StreamServer(), StreamServer()
    other._states = one._states
    with running(one), running(other):
        assert findings(examine(one.url, other.url))["replica"].verdict is Verdict.PASSES


def test_exact_sequences_of_any_kserve_server_pass_without_step_numbers(examine: Examine) -> None:
    with running(SequenceServer()) as server:
        outcome = examine(server.url, model="sum")
    by_check = findings(outcome)
    assert {by_check[name].verdict for name in ("split", "company", "state")} == {Verdict.PASSES}
    assert by_check["retry"].verdict is Verdict.NOT_APPLICABLE
    assert "no step numbers" in by_check["retry"].reason


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [("shared", "state", "one state for several streams"), ("forgets", "split", "starts anew")],
)
def test_a_fault_of_sequences_fails_its_check_with_the_cause(
    examine: Examine, fault: str, check: str, cause: str
) -> None:
    with running(SequenceServer(fault)) as server:
        finding = findings(examine(server.url, model="sum"))[check]
    assert finding.verdict is Verdict.FAILS
    assert cause in finding.reason
