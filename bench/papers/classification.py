"""Section 4.1 of the SRU paper: sentences per second of the classifiers in its table 1."""

import torch

from bench.cpu.matched_models import TOLERANCE, Disagreement
from bench.papers import peers
from bench.papers.systems import System, ids, run
from bench.report.report import Report
from bench.report.samples import Samples, interleave

_WORDS, _WIDTH, _CLASSES = 10_000, 300, 2  # word2vec's width
_LENGTH = 20  # words: the mean of the paper's sets is 10 to 23


def _system(family: str, **stack: object) -> System:
    return System(family, "classify", {"input_size": _WIDTH, **stack}, _WORDS, _CLASSES)


# The sizes of table 1, with its numbers of parameters.
SYSTEMS = {
    "CNN": _system("cnn", hidden_size=100),
    "LSTM": _system("lstm", hidden_size=128, num_layers=2),
    "QRNN": _system("qrnn", hidden_size=128, num_layers=2),
    "QRNN + highway": _system("qrnn", hidden_size=128, num_layers=2, highway=True),
    "SRU, 2 layers": _system("sru", hidden_size=128, num_layers=2),
    "SRU, 4 layers": _system("sru", hidden_size=128, num_layers=4),
    "SRU, 8 layers": _system("sru", hidden_size=128, num_layers=8),
}
_BATCHES = (32, 1)


def classification(report: Report, device: torch.device, rounds: int, quick: bool) -> None:
    """Measure all systems at once; raises `Disagreement` if a baseline computes something else."""
    for batch in _BATCHES:
        case = f"classification, {batch} sentences of {_LENGTH} words"
        report.progress(case)
        sentences = ids(batch, _LENGTH, _WORDS)
        candidates = {}
        for name, system in SYSTEMS.items():
            label = f"{name}, {system.parameters() // 1000}k"
            candidates[label] = run(system.network(device), sentences, last=True, carries=False)
        lstm, cnn = SYSTEMS["LSTM"].tensors(), SYSTEMS["CNN"].tensors()
        candidates["torch LSTM"] = peers.lstm(lstm, device, sentences, carries=False)
        candidates["torch CNN"] = peers.cnn(cnn, device, sentences)
        for name in ("LSTM", "CNN"):
            ours = next(call for label, call in candidates.items() if label.startswith(name))
            difference = float((ours() - candidates[f"torch {name}"]()).abs().max())
            if not difference <= TOLERANCE:
                raise Disagreement(f"{name}: ours and torch's differ by {difference:.3g}")
        samples = interleave(candidates, 1 if quick else rounds)
        report.add_case(case, samples)
        _claims(report, case, samples)


def _claims(report: Report, case: str, samples: dict[str, Samples]) -> None:
    """Record the ratios of which the paper speaks, with what it says."""
    by_name = {label.rsplit(", ", 1)[0]: each for label, each in samples.items()}
    sru = by_name["SRU, 2 layers"]
    for name, paper in (
        ("torch LSTM", "the paper: 5 to 9"),
        ("LSTM", "the paper: 5 to 9"),
        ("torch CNN", "the paper: 1.06 to 1.4"),
        ("CNN", "the paper: 1.06 to 1.4"),
    ):
        ours = "" if name.startswith("torch") else "our "
        label = f"{case}: {ours}{name} / SRU ({paper})"
        report.check(label, by_name[name].over(sru).median, "x")
