"""Each check keeps to its own bound of requests, and the exit code follows from all findings."""

import signal
import threading

import pytest

from sruserve.check import examine as examination
from sruserve.check.address import Address
from sruserve.check.checks.examination import Check, Examination
from sruserve.check.examine import CHECKS, Checked, exit_code
from sruserve.check.findings import Finding, Verdict
from sruserve.check.protocols.detect import PROTOCOLS
from sruserve.check.samples import TEXTS
from sruserve.check.transport import Access, Transport
from tests.check.conftest import Examine
from tests.check.fakes import StuckServer, running
from tests.server.observing import until


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("model", ["shakespeare", "question-type"])
def test_a_check_sends_no_more_requests_than_it_announces(url: str, model: str, count: int) -> None:
    replicas = [Transport(Address.parse(url), Access(), 1000) for _ in range(2)]
    server = PROTOCOLS["sruserve"](replicas, model)
    sent = []

    def begin(check: Check) -> None:
        sent.append(sum(replica.requests for replica in replicas))

    samples = server.samples(TEXTS[:count])
    examination.examine(Examination(server, samples, 8, 0.0), begin)
    sent.append(sum(replica.requests for replica in replicas))
    for check, before, after in zip(CHECKS, sent, sent[1:], strict=False):
        bound = check.max_requests(count) * (2 if check.name == "replica" else 1)
        assert after - before <= bound, check.name


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ("passes, not applicable", 0),
        ("not applicable", 2),
        ("passes, no answer", 2),
        ("passes, no answer, fails", 1),
    ],
)
def test_the_exit_code_follows_from_all_findings(verdicts: str, code: int) -> None:
    checked = [Checked(CHECKS[0], Finding(Verdict(v), "")) for v in verdicts.split(", ")]
    assert exit_code(checked) == code


def test_an_interrupted_examination_leaves_no_request(examine: Examine) -> None:
    with running(StuckServer()) as server:

        def interrupt() -> None:
            assert server.stuck.wait(60)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                examine(server.url, timeout=600)
            until(lambda: not [t for t in threading.enumerate() if t.name == "check"])
        finally:
            interrupting.join()
            server.end()
