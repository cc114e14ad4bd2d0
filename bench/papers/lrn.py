"""The LRN paper's recurrent units at its sizes: seconds of a batch, beside those that it reports.

Sizes and times are from the READMEs and configs of the LRN repository (`doc`, `lm`).
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from bench.papers.systems import System, features, run
from bench.report.report import Report
from bench.report.samples import interleave

FAMILIES = ("lstm", "gru", "atr", "sru", "lrn")


@dataclass(frozen=True, slots=True)
class Stack:
    """One of the paper's stacks of recurrent layers.

    sizes: fields of every family's config. shape: sequences and steps of a batch.
    seconds: what the paper reports of a training batch, by family.
    """

    name: str
    sizes: dict[str, Any]
    shape: tuple[int, int]
    seconds: dict[str, float] = field(default_factory=dict)


# AmaPolar of its document classifiers: the encoder reads words (300) and characters (32).
DOCUMENTS = Stack(
    "LRN's documents",
    {"input_size": 332, "hidden_size": 64, "num_layers": 1, "bidirectional": True},
    (64, 100),
    {"lstm": 0.947, "gru": 0.948, "atr": 0.867, "sru": 0.919, "lrn": 0.731},
)
# PTB: emsize 280, nhid 960. The paper's last layer has 620 (nhidlast); an SRU stack has one width.
LANGUAGE = Stack(
    "LRN's language models (PTB)",
    {"input_size": 280, "hidden_size": 960, "num_layers": 3},
    (12, 70),
)
_SMALL = {"input_size": 8, "hidden_size": 8, "num_layers": 1, "bidirectional": True}


def lrn(report: Report, device: torch.device, rounds: int, quick: bool) -> None:
    """Measure each stack with all of the paper's cells, without embeddings and heads."""
    for stack in (DOCUMENTS, LANGUAGE):
        sizes = _SMALL if quick else stack.sizes
        batch, steps = stack.shape
        case = f"{stack.name}, {batch} x {steps} words"
        report.progress(case)
        words = features(batch, steps, sizes["input_size"])
        labels, candidates = {}, {}
        for family in FAMILIES:
            system = System(family, "encode", sizes)
            labels[family] = f"{family.upper()}, {system.parameters() / 1e3:,.0f}k"
            network = system.network(device)
            candidates[labels[family]] = run(network, words, last=False, carries=False)
        samples = interleave(candidates, 1 if quick else rounds)
        report.add_case(case, samples)
        for family in FAMILIES[:-1]:
            ratio = samples[labels[family]].over(samples[labels["lrn"]]).median
            note = ""
            if stack.seconds:
                note = f" (the paper: {stack.seconds[family] / stack.seconds['lrn']:.2f})"
            report.check(f"{case}: {family.upper()} / LRN{note}", ratio, "x")
