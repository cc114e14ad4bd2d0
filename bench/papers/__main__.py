"""The papers' tables again: their systems at their sizes, on this machine, in one run.

    python -m bench.papers                  # about ten minutes; needs an idle machine
    python -m bench.papers --device cuda    # on a GPU
    python -m bench.papers --quick          # only shows that it runs; its figures mean nothing

The papers mostly report the time of training on one GPU; this is inference, in float32, of
networks with random weights, which cost what trained ones do. Where the baseline is torch's, its
scores must agree with ours to 1e-5; otherwise the exit code is 1.
"""

import argparse
import sys

import torch

from bench.cpu.matched_models import Disagreement
from bench.papers.characters import characters
from bench.papers.classification import classification
from bench.papers.lrn import lrn
from bench.report.arguments import command_line
from bench.report.report import Report

_ROUNDS = 11


def main() -> int:
    args = _arguments()
    device = torch.device(args.device)
    report = Report("papers", ("triton",) if device.type == "cuda" else (), args.quick)
    try:
        classification(report, device, _ROUNDS, args.quick)
        lrn(report, device, _ROUNDS, args.quick)
        characters(report, device, _ROUNDS, args.quick)
    except Disagreement as error:
        print(f"bench.papers: {error}", file=sys.stderr)
        return 1
    report.finish(args.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.papers", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is stored")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
