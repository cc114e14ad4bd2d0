"""Run all checks of a server, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sruserve.check.checks.company import Company
from sruserve.check.checks.events import Events
from sruserve.check.checks.examination import Check, Examination
from sruserve.check.checks.replicas import Replicas
from sruserve.check.checks.retry import Retry
from sruserve.check.checks.seed import Seed
from sruserve.check.checks.split import Split
from sruserve.check.checks.survival import Survival
from sruserve.check.errors import CheckError, NotApplicable
from sruserve.check.findings import Finding, Verdict

CHECKS: tuple[Check, ...] = (Split(), Company(), Seed(), Events(), Retry(), Survival(), Replicas())
_TO_OPEN = 10  # requests that find out protocol, model and fields
_PUT_OFF = 50  # requests that a server may put off with 429 or 503


@dataclass(frozen=True)
class Checked:
    """A check and what it found."""

    check: Check
    finding: Finding


def max_requests(samples: int) -> int:
    """The number of requests that an examination never exceeds, for each replica."""
    return _TO_OPEN + _PUT_OFF + sum(check.max_requests(samples) for check in CHECKS)


def examine(examination: Examination, begin: Callable[[Check], None]) -> list[Checked]:
    """Ask every question. begin: called before each check."""
    checked = []
    for check in CHECKS:
        begin(check)
        checked.append(Checked(check, _run(check, examination)))
    return checked


def _run(check: Check, examination: Examination) -> Finding:
    try:
        return check.run(examination)
    except NotApplicable as error:
        return Finding(Verdict.NOT_APPLICABLE, str(error))
    except CheckError as error:
        return Finding(Verdict.NO_ANSWER, str(error))


def exit_code(checked: Sequence[Checked]) -> int:
    """1 if a check fails; else 2 if one could not be finished, or none could be asked; else 0."""
    verdicts = {each.finding.verdict for each in checked}
    if Verdict.FAILS in verdicts:
        return 1
    return 2 if Verdict.NO_ANSWER in verdicts or Verdict.PASSES not in verdicts else 0
