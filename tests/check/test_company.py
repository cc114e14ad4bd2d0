"""Results that depend on other requests are found, with a small example and the likely cause."""

import pytest

from sruserve.check.findings import Verdict
from tests.check.conftest import Examine, findings
from tests.check.fakes import CompletionServer, StreamServer, TensorServer, running


@pytest.mark.parametrize("fake", [TensorServer, CompletionServer, StreamServer])
def test_a_batch_that_changes_nothing_passes(examine: Examine, fake: type) -> None:
    with running(fake()) as server:
        outcome = examine(server.url)
    assert findings(outcome)["company"].verdict is Verdict.PASSES
    assert outcome.exit_code == 0


def test_a_server_that_pads_fails_the_check_of_padding(examine: Examine) -> None:
    with running(TensorServer("pads")) as server:
        outcome = examine(server.url)
    finding = findings(outcome)["company"]
    assert finding.verdict is Verdict.FAILS
    assert "pads" in finding.reason
    assert finding.example == "input 0 (1 step) with input 6 (53 steps) at the same time"
    assert finding.difference.startswith("y[0]: ")
    assert finding.largest > 0.01
    assert not finding.within_rounding
    assert outcome.exit_code == 1


def test_a_server_that_normalises_over_the_batch_is_not_said_to_pad(examine: Examine) -> None:
    with running(TensorServer("normalises")) as server:
        finding = findings(examine(server.url))["company"]
    assert finding.verdict is Verdict.FAILS
    assert "pads" not in finding.reason
    assert "normalises" in finding.reason


def test_texts_that_change_with_the_batch_are_explained_by_close_choices(
    examine: Examine,
) -> None:
    with running(CompletionServer("tips")) as server:
        finding = findings(examine(server.url))["company"]
    assert finding.verdict is Verdict.FAILS
    assert "tips close choices" in finding.reason
    assert finding.difference.startswith("text[0]: ")


def test_a_server_whose_results_change_by_themselves_is_found_without_company(
    examine: Examine,
) -> None:
    with running(TensorServer("drifts")) as server:
        finding = findings(examine(server.url))["company"]
    assert finding.verdict is Verdict.FAILS
    assert "alone" in finding.reason


def test_rounding_fails_bit_for_bit_and_passes_within_a_tolerance(examine: Examine) -> None:
    with running(TensorServer("rounds")) as server:
        strict, tolerant = (
            findings(examine(server.url, tolerance=tolerance))["company"]
            for tolerance in (0.0, 1e-5)
        )
    assert strict.verdict is Verdict.FAILS
    assert strict.within_rounding
    assert "rounding" in strict.reason
    assert "--tolerance" in strict.reason
    assert tolerant.verdict is Verdict.PASSES
    assert tolerant.largest == pytest.approx(7e-8, rel=0.1)
    assert "largest difference" in tolerant.reason
    assert "rounding" in tolerant.reason
    with running(TensorServer("pads")) as server:
        wide = findings(examine(server.url, tolerance=10.0))["company"]
    assert wide.verdict is Verdict.PASSES
    assert not wide.within_rounding
    assert "rounding" not in wide.reason


def test_no_more_requests_are_sent_or_open_than_announced(
    examine: Examine, announced: list[str]
) -> None:
    for fake in TensorServer("pads"), CompletionServer(), StreamServer():
        with running(fake) as server:
            outcome = examine(server.url, concurrency=3)
        words = announced.pop().replace(",", "").split()
        assert len(fake.sent) == outcome.requests <= int(words[words.index("requests") - 1])
        assert fake.peak_open <= 3
        assert all(each.finding.verdict is not Verdict.NO_ANSWER for each in outcome.checked)
