"""Section 4.4 of the SRU paper, and SRU++: character models at the released sizes.

The sizes of SRU are those of the release's `language_model/README.md` (8, 10 and 12 layers), and
6 layers with as many weights; those of SRU++ are in the README of its release, 3.0.0-dev.
"""

import torch

from bench.cpu.matched_models import TOLERANCE, Disagreement
from bench.papers import peers
from bench.papers.systems import System, ids, run
from bench.report.report import Report
from bench.report.samples import interleave

_CHARACTERS = 205  # the bytes of enwik8


def _system(family: str, width: int, **stack: object) -> System:
    return System(family, "generate", {"input_size": width, **stack}, _CHARACTERS)


def _sru(layers: int, hidden: int, projection: int = 0, width: int = _CHARACTERS) -> System:
    sizes = {"num_layers": layers, "hidden_size": hidden, "projection_size": projection}
    return _system("sru", width, **sizes)


def _srupp(hidden: int, projection: int) -> System:
    sizes = {"num_layers": 10, "hidden_size": hidden, "proj_size": projection, "window": 1024}
    return _system("srupp", hidden, **sizes)


_LSTM = _system("lstm", _CHARACTERS, num_layers=6, hidden_size=904)
SYSTEMS = {
    "LSTM 6 x 904": _LSTM,
    "QRNN 6 x 1536": _system("qrnn", _CHARACTERS, num_layers=6, hidden_size=1536),
    "SRU 6 x 1536": _sru(6, 1536),
    "SRU 8 x 1312": _sru(8, 1312),
    "SRU 10 x 1152": _sru(10, 1152),
    "SRU 6 x 4096, projection 512": _sru(6, 4096, 512),
    "SRU 8 x 3056, projection 512": _sru(8, 3056, 512),
    "SRU 12 x 2048, projection 512": _sru(12, 2048, 512, 256),
    "SRU++ 10 x 3072, projection 768": _srupp(3072, 768),
}
_LARGE = {"SRU++ 10 x 6016, projection 752": _srupp(6016, 752)}
_SMALL = {
    "LSTM 6 x 16": _system("lstm", 8, num_layers=6, hidden_size=16),
    "SRU 6 x 16": _sru(6, 16, width=8),
}
# Sequences and steps of a call; one step continues the states of the call before.
_SHAPES = ((8, 128), (1, 1), (64, 1))


def characters(report: Report, device: torch.device, rounds: int, quick: bool) -> None:
    """Measure all systems at once: characters that are read, then steps of 1 and 64 streams."""
    systems = _SMALL if quick else SYSTEMS | _LARGE
    baseline = "LSTM 6 x 16" if quick else "LSTM 6 x 904"
    sizes = {name: f"{name}, {system.parameters() / 1e6:.1f}M" for name, system in systems.items()}
    networks = {name: system.network(device) for name, system in systems.items()}
    tensors = systems[baseline].tensors()
    for batch, steps in _SHAPES:
        case = f"character models, {batch} x {steps} characters"
        report.progress(case)
        text, carries = ids(batch, steps, 8 if quick else _CHARACTERS), steps == 1
        candidates = {
            sizes[name]: run(network, text, last=True, carries=carries)
            for name, network in networks.items()
        }
        torch_lstm = f"torch {sizes[baseline]}"
        candidates[torch_lstm] = peers.lstm(tensors, device, text, carries)
        difference = float((candidates[sizes[baseline]]() - candidates[torch_lstm]()).abs().max())
        if not difference <= TOLERANCE:
            raise Disagreement(f"{case}: our LSTM and torch's differ by {difference:.3g}")
        samples = interleave(candidates, 1 if quick else rounds)
        report.add_case(case, samples)
        for name, label in sizes.items():
            if name.startswith("SRU "):
                ratio = samples[torch_lstm].over(samples[label]).median
                report.check(f"{case}: torch LSTM / {name}", ratio, "x")
