"""The kernels and one-step decode on a GPU: checks first, then every figure with its floor.

    python -m bench.gpu               # about five minutes on an H200, which should be idle
    python -m bench.gpu --only-checks # checks every result and measures no time
    python -m bench.gpu --quick       # only shows that it runs; its figures mean nothing
    python -m bench.gpu first-hour --help   # on a borrowed GPU: stages of ten minutes each

On another machine, copy the checkout there (git archive HEAD | ssh HOST tar x -C sruserve) and run
the command in its root. It needs an NVIDIA GPU of compute capability 8.0 or higher, Python 3.11 or
newer, torch 2.11 or newer with CUDA, and its Triton, 3.6 or newer. It installs and downloads
nothing. Results are files under bench/results (or --results FOLDER), and the last line of the
output is all of them as JSON. To try the script without a GPU:

    TRITON_INTERPRET=1 python -m bench.gpu --quick

Before any measurement the kernels must agree with float64, and bit for bit with themselves: graphs
with launches, few rows with many, steps with whole sequences. Otherwise the exit code is 1 and
nothing is measured, unless --time-anyway is given. The exit code is also 1 if a part could not be
measured, and 2 without a GPU or for a candidate that it cannot run. A missed target does not fail
the run, but is marked in the table. A floor is the number of bytes to move, or of operations,
divided by the device's measured rate in the same run.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import torch

from bench.gpu.cached_states import cached_state_timings
from bench.gpu.ceilings import measure_ceilings
from bench.gpu.checks import kernel_checks
from bench.gpu.checks_bits import bit_checks, self_checks
from bench.gpu.checks_decode import decode_checks
from bench.gpu.context import Bench, Ceilings
from bench.gpu.decode import decode_timings
from bench.gpu.first_hour import first_hour
from bench.gpu.layers import layer_timings
from bench.gpu.peer import peer_timings
from bench.gpu.scan import scan_timings
from bench.gpu.tiles import tile_timings
from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.tables import CHECK_HEAD, check_row, text_table
from bench.report.targets import Check
from sruserve.kernels.candidates import Candidate, choose
from sruserve.kernels.triton import tiles

Part = Callable[[Bench, Ceilings], None]
Group = Callable[[Bench], Iterator[Check]]

PARTS: dict[str, Part] = {
    "scan": scan_timings,
    "layers": layer_timings,
    "decode": decode_timings,
    "states": cached_state_timings,
    "peer": peer_timings,
    "tiles": tile_timings,
}
GROUPS: dict[str, Group] = {
    "self": self_checks,
    "bits": bit_checks,
    "kernels": kernel_checks,
    "decode": decode_checks,
}
_ROUNDS, _QUICK_ROUNDS = 15, 1


def main(table: Mapping[str, Part] = PARTS) -> int:
    """Run the checks and the parts that the command line names. table: of the parts."""
    begin = perf_counter()
    if sys.argv[1:2] == ["first-hour"]:
        return first_hour(sys.argv[2:])
    args = _arguments(table)
    interpreted = _interpreted()
    if not interpreted and not torch.cuda.is_available():
        print("bench.gpu: torch sees no GPU; see --help for the requirements", file=sys.stderr)
        return 2
    if interpreted and not args.quick:
        print("bench.gpu: Triton's interpreter supports --quick only", file=sys.stderr)
        return 2
    refused = [] if interpreted else _refused(args.candidates)
    if refused:
        print("\n".join(f"bench.gpu: {each}" for each in refused), file=sys.stderr)
        return 2
    if args.shared_columns:
        tiles.share_columns(args.shared_columns)
    choose(set(args.candidates))
    report = Report("gpu", ("triton",), args.quick, args.lines)
    bench = Bench(
        report=report,
        device=torch.device("cpu") if interpreted else torch.device("cuda", 0),
        dtype=torch.float32 if interpreted else torch.bfloat16,
        rounds=_QUICK_ROUNDS if args.quick else _ROUNDS,
        quick=args.quick,
    )
    torch.manual_seed(1)
    checks, failed = _check(bench, args.groups)
    failing = [check for check in checks if not check.target.met(check.value)]
    if failing or failed or args.only_checks:
        code = _print_checks(checks, failing, failed)
        if args.only_checks or not args.time_anyway:
            return code
        failed += [f"RED: {each.what}: {each.value:.3g}" for each in failing]
    bench.check("checks that hold", len(checks), "checks")
    bench.check("checks: seconds, with all that was compiled", perf_counter() - begin, "s")
    ceilings = measure_ceilings(bench)
    for part in args.parts:
        if perf_counter() - begin > args.budget_s:
            failed.append(f"{part}: skipped, because the budget of {args.budget_s} s is used up")
        else:
            _measure(bench, ceilings, part, table[part], failed)
    bench.check("the whole run: seconds", perf_counter() - begin, "s")
    for each in failed:
        print(f"NOT MEASURED: {each}", flush=True)
    report.finish(args.results)
    return 1 if failed else 0


def _interpreted() -> bool:
    """Whether the Triton kernels run on the CPU, in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _refused(candidates: Sequence[Candidate]) -> list[str]:
    """Which candidates cannot run on this GPU, and why."""
    from sruserve.kernels.triton.support import why_not

    capability = torch.cuda.get_device_capability(0)
    reasons = {each: why_not(each, capability) for each in candidates}
    return [f"leave out {each}: {reason}" for each, reason in reasons.items() if reason]


def _check(
    bench: Bench, groups: Sequence[str], table: Mapping[str, Group] = GROUPS
) -> tuple[list[Check], list[str]]:
    """Run groups of checks; returns them, and the errors of those that failed to run."""
    checks: list[Check] = []
    failed: list[str] = []
    for group in (table[each] for each in groups):
        try:
            for check in group(bench):
                bench.report.progress(check.what)
                bench.report.line(check.summary())
                checks.append(check)
        except Exception as error:
            traceback.print_exc()
            failed.append(f"{group.__name__}: {type(error).__name__}: {error}")
            bench.report.line({"broke": failed[-1]})
    bench.report.progress("")
    return checks, failed


def _print_checks(checks: Sequence[Check], failing: Sequence[Check], failed: Sequence[str]) -> int:
    """Print all checks as a table, those that fail once more, and a JSON line."""
    print(text_table(CHECK_HEAD, [check_row(each.summary()) for each in checks]) + "\n")
    for each in failing:
        print(f"RED: {each.what}: {each.value:.3g}, wanted {each.target}")
    for failure in failed:
        print(f"RED: {failure}")
    if failing or failed:
        print("nothing is measured until all checks pass, unless --time-anyway is given")
    summaries = [each.summary() for each in checks]
    print(json.dumps({"bench": "gpu", "checks": summaries, "failed": list(failed)}), flush=True)
    return 1 if failing or failed else 0


def _measure(bench: Bench, ceilings: Ceilings, part: str, run: Part, failed: list[str]) -> None:
    """Measure one part; an error is reported and does not stop the other parts."""
    start = perf_counter()
    try:
        run(bench, ceilings)
    except Exception as error:
        traceback.print_exc()
        failed.append(f"{part}: {type(error).__name__}: {error}")
        bench.report.line({"broke": failed[-1]})
    with suppress(Exception):  # the failed part may have lost the device
        torch.cuda.empty_cache()
    bench.check(f"{part}: seconds", perf_counter() - start, "s")


def _arguments(table: Mapping[str, Part]) -> argparse.Namespace:
    parser = command_line("bench.gpu", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is stored")
    parser.add_argument("--only-checks", action="store_true", help="measure no time")
    parser.add_argument("--time-anyway", action="store_true", help="measure even if a check is red")
    parser.add_argument(
        "--groups",
        nargs="*",
        choices=GROUPS,
        default=list(GROUPS),
        help="the checks to run, in this order; none: no checks; default: all",
    )
    parser.add_argument(
        "--shared-columns",
        type=int,
        help="give all tiles of products these columns, to see if other bits come from them",
    )
    parser.add_argument(
        "--candidates",
        nargs="*",
        type=Candidate,
        choices=list(Candidate),
        default=[],
        help="variants of the kernels to use in this run; default: none",
    )
    parser.add_argument(
        "--lines", type=Path, help="file that gets each finding at once, as a line of JSON"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=table,
        default=list(table),
        help="the timings to run and store, in this order; default: all",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=480,
        help="seconds after which no further part starts; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
