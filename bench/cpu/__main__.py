"""Our stack against `sru` 2.6.0 and `torch.nn`, and a breakdown of its time. No server.

    python -m bench.cpu            # a few minutes; needs an idle machine
    python -m bench.cpu --quick    # only shows that it runs; its figures mean nothing

Candidates take turns and have the same number of threads. Before any measurement, outputs and end
states of both must agree to 1e-5 in float32; otherwise the exit code is 1. The only CPU kernel of
`sru` is float32, so our bfloat16 is compared with its float32. A missed target does not fail the
run, but is marked in the table.
"""

import argparse
import os
import sys
from dataclasses import dataclass

import torch

from bench.cpu.against_sru import against_sru
from bench.cpu.families import against_torch, compare_with_sru
from bench.cpu.matched_models import Disagreement, Shape
from bench.cpu.quantised import quantised
from bench.cpu.time_breakdown import scan_alone
from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.targets import NO_TARGET, Target
from bench.serve.endurance import long_input, memory
from bench.serve.startup import process_start, state_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements and their sizes.

    stacks: shapes of whole inputs. steps: shapes of single steps, with the minimum speed-up of our
    bfloat16. gated: shapes of whole inputs for LSTM and GRU. piece: the shape for the recurrence
    alone, as large as a piece in a network.
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
            faster = {"float32": Target(minimum=3), "bfloat16": Target(minimum=6)}
            against_sru(report, shape, plan.rounds, faster, {"float32": Target(maximum=1.25)})
        for shape, times in plan.steps:
            against_sru(report, shape, plan.rounds, {"bfloat16": Target(minimum=times)}, {})
        quantised(report, plan.stacks[0], plan.rounds, "sru float32", Target(minimum=8))
        for shape, _ in plan.steps:
            faster_step = Target(minimum=1.6) if shape.batch == 1 else NO_TARGET
            quantised(report, shape, plan.rounds, "ours bfloat16", faster_step)
        for shape in plan.stacks:
            compare_with_sru(report, shape, plan.rounds, Target(maximum=1.2))
        for shape in plan.gated:
            for family in ("lstm", "gru"):
                against_torch(report, family, shape, plan.rounds, Target(maximum=1.1))
    except Disagreement as error:
        print(f"bench.cpu: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"bench.cpu: {error}; `make bench` installs the peers", file=sys.stderr)
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
    parser = command_line("bench.cpu", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is stored")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="threads of every candidate; default: all cores",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
