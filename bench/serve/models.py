"""The models and inputs of the measurements: the bundled models, and real questions."""

from bench.report.machine import ROOT
from sruserve.model.bundled import BUNDLED

CLASSIFIER = BUNDLED / "question-type"
LANGUAGE_MODEL = BUNDLED / "shakespeare"


def questions() -> list[str]:
    """Return the TREC test questions, without their labels."""
    text = (ROOT / "tests" / "data" / "trec.test").read_text(encoding="utf-8")
    return [line.split(" ", 1)[1] for line in text.splitlines()]
