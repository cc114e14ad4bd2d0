"""Our own server passes every check that applies, over each protocol."""

from pathlib import Path

import pytest

from sruserve.check.findings import Verdict
from tests.check.conftest import Examine, findings

ALL = {"split", "company", "seed", "events", "retry", "state", "replica"}
STREAMED = {"split", "company", "retry", "state", "replica"}
WHOLE = {"company", "replica"}
WRITES = {"seed", "events"}
CASES = [
    ("sruserve", "question-type", STREAMED),
    ("sruserve", "shakespeare", ALL),
    ("sruserve", "tagger", STREAMED),
    ("sruserve", "encoder", STREAMED),
    ("sruserve", "sensor", STREAMED),
    ("sruserve", "meter", STREAMED),
    ("sruserve", "ids", ALL),
    ("sruserve", "whole", WHOLE),
    ("sruserve", "pairs", WHOLE),
    ("kserve", "question-type", STREAMED),
    ("kserve", "shakespeare", ALL - {"events"}),
    ("kserve", "tagger", STREAMED),
    ("kserve", "encoder", STREAMED),
    ("kserve", "sensor", STREAMED),
    ("kserve", "meter", STREAMED),
    ("kserve", "ids", ALL - {"events"}),
    ("kserve", "whole", WHOLE),
    ("kserve", "pairs", WHOLE),
    ("openai", "shakespeare", WHOLE | WRITES),
]


@pytest.mark.parametrize(("protocol", "model", "applicable"), CASES)
def test_our_server_passes_what_applies(
    url: str, examine: Examine, protocol: str, model: str, applicable: set[str]
) -> None:
    outcome = examine(url, url, protocol=protocol, model=model)
    by_check = findings(outcome)
    reasons = {name: finding.reason for name, finding in by_check.items()}
    passed = {n for n, finding in by_check.items() if finding.verdict is Verdict.PASSES}
    assert passed == applicable, reasons
    others = [finding for name, finding in by_check.items() if name not in applicable]
    assert all(each.verdict is Verdict.NOT_APPLICABLE for each in others), reasons
    assert all(len(each.reason) > 20 for each in by_check.values())
    assert all(by_check[name].comparisons >= 4 for name in passed)
    assert all(by_check[name].largest == 0 for name in passed)
    assert outcome.exit_code == 0


@pytest.mark.parametrize(
    ("protocol", "model", "applicable"),
    [
        ("sruserve", "numbers", STREAMED - {"retry"}),
        ("sruserve", "gru-dot", WHOLE),
        ("kserve", "numbers", WHOLE),
    ],
)
def test_translations_are_compared_and_those_of_texts_in_chunks_too(
    url: str, examine: Examine, tmp_path: Path, protocol: str, model: str, applicable: set[str]
) -> None:
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("en: 7\nde: 421\niso: March 5, 2021\n")
    by_check = findings(examine(url, url, protocol=protocol, model=model, inputs=inputs))
    reasons = {name: finding.reason for name, finding in by_check.items()}
    passed = {n for n, finding in by_check.items() if finding.verdict is Verdict.PASSES}
    assert passed == applicable, reasons
    if "split" in passed:
        assert "no stream of the server holds a translation" in reasons["retry"]


def test_an_unnamed_replica_and_other_things_that_do_not_exist_are_explained(
    url: str, examine: Examine
) -> None:
    by_check = findings(examine(url, protocol="openai", model="shakespeare"))
    assert "--url" in by_check["replica"].reason
    assert "no states" in by_check["split"].reason
    assert "no steps" in by_check["retry"].reason
    whole = findings(examine(url, protocol="sruserve", model="whole"))
    assert "whole inputs only" in whole["state"].reason
    assert "writes no text" in whole["seed"].reason


def test_the_protocol_of_our_server_is_found(url: str, examine: Examine) -> None:
    assert examine(url, model="question-type").protocol == "sruserve"
