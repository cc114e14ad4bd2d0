"""Our stack against `sru` 2.6.0 and `torch.nn`, and what its time is made of. No server.

    python -m bench.stack            # a few minutes; wants an idle machine
    python -m bench.stack --quick    # does it run at all? Its figures mean nothing

Candidates take turns and have equal threads. Before any time is taken, outputs and end states of
both must agree to 1e-5 in float32; if they do not, the exit code is 1. `sru` has a float32 kernel
for the CPU and no other, so our bfloat16 stands beside its float32. A missed target does not fail
the run: the table says it.
"""

import argparse
import os
import sys
from dataclasses import dataclass

import torch

from bench.arguments import command_line
from bench.endurance import long_input, memory
from bench.families import against_torch, beside_sru
from bench.parts import scan_alone
from bench.report import Report
from bench.surroundings import process_start, state_tokens
from bench.targets import Target
from bench.twins import Disagreement, Shape
from bench.versus import against_sru


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how often.

    stacks: shapes. steps: shapes, and how much faster our bfloat16 has to be. piece: what the
    recurrence alone runs on, as large as a piece in a network. gated: whole
    inputs of LSTM and GRU.
    """

    stacks: tuple[Shape, ...]
    steps: tuple[tuple[Shape, float], ...]
    gated: tuple[Shape, ...]
    piece: Shape
    long_steps: int
    memory_calls: int
    memory_steps: int
    starts: int
    rounds: int


FULL = Plan(
    stacks=(Shape(128, 32, 512, 4), Shape(512, 32, 512, 4)),
    steps=((Shape(1, 1, 1024, 8), 3), (Shape(1, 32, 1024, 8), 6)),
    gated=(Shape(256, 32, 512, 2), Shape(512, 1, 512, 2)),
    piece=Shape(128, 8, 512, 1),
    long_steps=10_000,
    memory_calls=1_000,
    memory_steps=1_000,
    starts=5,
    rounds=15,
)
QUICK = Plan(
    stacks=(Shape(16, 4, 64, 2),),
    steps=((Shape(1, 2, 64, 2), 3),),
    gated=(Shape(16, 4, 64, 2),),
    piece=Shape(16, 8, 64, 1),
    long_steps=1_000,
    memory_calls=10,
    memory_steps=100,
    starts=1,
    rounds=2,
)


def main() -> int:
    args = _arguments()
    torch.set_num_threads(args.threads)
    plan = QUICK if args.quick else FULL
    report = Report("stack", ("sru",), args.quick)
    try:
        for shape in plan.stacks:
            faster = {"float32": Target(least=3), "bfloat16": Target(least=6)}
            against_sru(report, shape, plan.rounds, faster, {"float32": Target(most=1.25)})
        for shape, times in plan.steps:
            against_sru(report, shape, plan.rounds, {"bfloat16": Target(least=times)}, {})
        for shape in plan.stacks:
            beside_sru(report, shape, plan.rounds, Target(most=1.2))
        for shape in plan.gated:
            for family in ("lstm", "gru"):
                against_torch(report, family, shape, plan.rounds, Target(most=1.1))
    except Disagreement as error:
        print(f"bench.stack: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"bench.stack: {error}; `make bench` installs the peers", file=sys.stderr)
        return 1
    long_input(report, plan.long_steps, plan.rounds)
    memory(report, plan.memory_calls, plan.memory_steps)
    for dtype in (torch.float32, torch.bfloat16):
        scan_alone(report, plan.piece, dtype, plan.rounds)
    state_tokens(report, plan.rounds)
    process_start(report, plan.starts)
    report.finish(args.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.stack", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is kept")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of every candidate; default: all cores"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
