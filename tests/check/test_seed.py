"""Texts that a seed does not fix are found, alone, under load and as events."""

import pytest

from sruserve.check.findings import Verdict
from tests.check.conftest import Examine, findings
from tests.check.fakes import CompletionServer, running


def test_exact_seeds_pass(examine: Examine) -> None:
    with running(CompletionServer()) as server:
        outcome = examine(server.url)
    by_check = findings(outcome)
    assert {by_check[name].verdict for name in ("company", "seed", "events")} == {Verdict.PASSES}
    assert outcome.protocol == "openai"


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [
        ("load", "seed", "under load"),
        ("unseeded", "seed", "ignores `seed`"),
        ("drops", "events", "do not add up"),
    ],
)
def test_a_fault_of_seeds_fails_its_check_with_the_cause(
    examine: Examine, fault: str, check: str, cause: str
) -> None:
    with running(CompletionServer(fault)) as server:
        outcome = examine(server.url)
    finding = findings(outcome)[check]
    assert finding.verdict is Verdict.FAILS
    assert cause in finding.reason
    assert finding.difference.startswith("text[")
    assert outcome.exit_code == 1


def test_a_server_that_does_not_sample_cannot_show_what_a_seed_does(examine: Examine) -> None:
    with running(CompletionServer("greedy")) as server:
        finding = findings(examine(server.url))["seed"]
    assert finding.verdict is Verdict.NOT_APPLICABLE
    assert "does not sample" in finding.reason


def test_a_server_without_log_probabilities_is_examined_by_its_texts(examine: Examine) -> None:
    with running(CompletionServer("logprobs")) as server:
        outcome = examine(server.url)
    assert findings(outcome)["company"].verdict is Verdict.PASSES
