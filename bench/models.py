"""What the servers are measured with: the bundled models, and real questions."""

from bench.machine import ROOT
from sruserve.server.discovery import BUNDLED

CLASSIFIER = BUNDLED / "question-type"
LANGUAGE_MODEL = BUNDLED / "shakespeare"


def questions() -> list[str]:
    """The TREC test questions, without their labels."""
    text = (ROOT / "tests" / "data" / "trec.test").read_text(encoding="utf-8")
    return [line.split(" ", 1)[1] for line in text.splitlines()]
