"""The kernels and one-step decode on a GPU: checks first, then every figure beside its floor.

    python -m bench.gpu               # about five minutes on an H200, which should be idle
    python -m bench.gpu --only-checks # is every result right? No time is taken
    python -m bench.gpu --quick       # does it run at all? Its figures mean nothing

On another machine: copy the checkout there (git archive HEAD | ssh HOST tar x -C sruserve), and
run the command in its root. It needs an NVIDIA GPU of compute capability 8.0 or newer, Python 3.11
or newer, torch 2.11 or newer with CUDA, and the Triton 3.6 or newer that comes with it; nothing
is installed or downloaded. Results are files under bench/results (or --results FOLDER), and the
last line of the output is all of them as JSON. To try the script without a GPU:

    TRITON_INTERPRET=1 python -m bench.gpu --quick

Before any time is taken the kernels have to agree with float64, and bit for bit with themselves:
graphs with launches, few rows with many, steps with whole sequences. If they do not, the exit code
is 1 and no time is taken. It is also 1 if a part could not be measured, and 2 without a GPU. A
missed target does not fail the run: the table says it. A floor is the bytes that have to be moved,
or the operations, over what this device was measured to do in the same run.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

import torch

from bench.arguments import command_line
from bench.gpu_ceilings import measure_ceilings
from bench.gpu_checks import kernel_checks
from bench.gpu_checks_decode import decode_checks
from bench.gpu_context import Bench, Ceilings
from bench.gpu_decode import decode_timings
from bench.gpu_layers import layer_timings
from bench.gpu_peer import peer_timings
from bench.gpu_residents import resident_timings
from bench.gpu_scan import scan_timings
from bench.gpu_tiles import tile_timings
from bench.report import Report
from bench.tables import CHECK_HEAD, check_row, text_table
from bench.targets import Check

PARTS: dict[str, Callable[[Bench, Ceilings], None]] = {
    "scan": scan_timings,
    "layers": layer_timings,
    "decode": decode_timings,
    "residents": resident_timings,
    "peer": peer_timings,
    "tiles": tile_timings,
}
_ROUNDS, _QUICK_ROUNDS = 15, 1


def main() -> int:
    begin = perf_counter()
    args = _arguments()
    interpreted = _interpreted()
    if not interpreted and not torch.cuda.is_available():
        print("bench.gpu: torch sees no GPU; --help says what it needs", file=sys.stderr)
        return 2
    if interpreted and not args.quick:
        print("bench.gpu: Triton's interpreter is for --quick alone", file=sys.stderr)
        return 2
    report = Report("gpu", ("triton",), args.quick)
    bench = Bench(
        report=report,
        device=torch.device("cpu") if interpreted else torch.device("cuda", 0),
        dtype=torch.float32 if interpreted else torch.bfloat16,
        rounds=_QUICK_ROUNDS if args.quick else _ROUNDS,
        quick=args.quick,
    )
    torch.manual_seed(1)
    checks, failed = _check(bench)
    red = [check for check in checks if not check.target.met(check.value)]
    if red or failed or args.only_checks:
        return _tell_checks(checks, red, failed)
    bench.check("checks that hold", len(checks), "checks")
    bench.check("checks: seconds, with all that was compiled", perf_counter() - begin, "s")
    ceilings = measure_ceilings(bench)
    for part in args.parts:
        if perf_counter() - begin > args.budget_s:
            failed.append(f"{part}: left out, {args.budget_s} s are over")
        else:
            _measure(bench, ceilings, part, failed)
    bench.check("the whole run: seconds", perf_counter() - begin, "s")
    for each in failed:
        print(f"NOT MEASURED: {each}", flush=True)
    report.finish(args.results)
    return 1 if failed else 0


def _interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _check(bench: Bench) -> tuple[list[Check], list[str]]:
    """All checks, and what broke on the way."""
    found: list[Check] = []
    failed: list[str] = []
    for group in (kernel_checks, decode_checks):
        try:
            for check in group(bench):
                bench.report.doing(check.what)
                found.append(check)
        except Exception as error:
            traceback.print_exc()
            failed.append(f"{group.__name__}: {type(error).__name__}: {error}")
    bench.report.doing("")
    return found, failed


def _tell_checks(checks: Sequence[Check], red: Sequence[Check], failed: Sequence[str]) -> int:
    """All checks as a table, those that are red once more, and a JSON line."""
    print(text_table(CHECK_HEAD, [check_row(each.summary()) for each in checks]) + "\n")
    for each in red:
        print(f"RED: {each.what}: {each.value:.3g}, wanted {each.target}")
    for what in failed:
        print(f"RED: {what}")
    if red or failed:
        print("no time is taken before all of these hold")
    told = [each.summary() for each in checks]
    print(json.dumps({"bench": "gpu", "checks": told, "failed": list(failed)}), flush=True)
    return 1 if red or failed else 0


def _measure(bench: Bench, ceilings: Ceilings, part: str, failed: list[str]) -> None:
    """One part; what breaks there is told, and the others are measured all the same."""
    start = perf_counter()
    try:
        PARTS[part](bench, ceilings)
    except Exception as error:
        traceback.print_exc()
        failed.append(f"{part}: {type(error).__name__}: {error}")
    with suppress(Exception):  # a part that broke may have taken the device with it
        torch.cuda.empty_cache()
    bench.check(f"{part}: seconds", perf_counter() - start, "s")


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.gpu", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is kept")
    parser.add_argument("--only-checks", action="store_true", help="stop before any time is taken")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        help="which timings, in this order; only these are kept then; default: all",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=480,
        help="seconds after which no further part is begun; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
