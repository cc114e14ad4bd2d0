"""The first hour on a borrowed GPU: five stages of ten minutes at most, which write as they go.

    python -m bench.gpu first-hour --stage 1   # or with --results FOLDER

1: the server's own checks, and equal bits. 2: the scan, layers and decoding, timed. 3: tests/gpu in
many processes. 4: candidates (`--candidates`), tiles, and a hundred thousand streams. 5: races and
profiles, with NVIDIA's compute-sanitizer and ncu where they are installed. A stage needs no other
one. Each step is a process of its own, whose end, red or not, lets the next one begin. Checks
measure no time and run side by side. On a machine of 16 cores stage 1 took a minute, stage 2 half a
minute once its kernels were compiled, and stage 3 nearly three.
FOLDER/stage-N.jsonl gets every result at once, and FOLDER/stage-N-STEP.log what a step prints.
Compiled kernels are shared in FOLDER/triton-cache. To try a stage without a GPU: TRITON_INTERPRET=1
and --quick.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench.report.machine import ROOT

_BENCH = (sys.executable, "-m", "bench.gpu", "--time-anyway")
_UNCHECKED = (*_BENCH, "--groups", "--parts")
_STAGE_SECONDS = 570
_MAX_PROCESSES = 15  # of tests, whose kernels take 40 to 60 minutes to compile in one


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a stage. tools: programs or Python packages without which it is left out."""

    name: str
    command: tuple[str, ...]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps in their order, and what a person should look at afterwards.

    together: run the steps side by side, because they measure no time.
    """

    steps: tuple[Step, ...]
    look_at: str
    together: bool = False


def _checks(name: str, *options: str) -> Step:
    return Step(name, (*_BENCH, "--only-checks", "--groups", *options))


def _profile(kernel: str, part: str) -> Step:
    limits = ("--launch-skip", "10", "--launch-count", "3", "--set", "full")
    command = ("ncu", *limits, "--kernel-name", f"regex:{kernel}", *_UNCHECKED, part)
    return Step(f"profile-{kernel}", command, ("ncu",))


def _variant(part: str, *candidates: str) -> Step:
    """A part of the timings with variants that no device has judged; compare it with stage 2."""
    return Step(f"{part}-{'-'.join(candidates)}", (*_UNCHECKED, part, "--candidates", *candidates))


_TESTS = (
    *(sys.executable, "-m", "pytest", "tests/gpu", "-p", "bench.gpu.pytest_lines", "-W", "default"),
    *("-n", str(max(1, min(_MAX_PROCESSES, (os.cpu_count() or 2) - 1))), "-q"),
)
_RACECHECK = ("compute-sanitizer", "--tool", "racecheck", "--error-exitcode", "3")
STAGES = {
    1: Stage(
        (
            _checks("self", "self"),
            _checks("bits", "bits"),
            _checks("bits-of-shared-columns", "bits", "--shared-columns", "32"),
            _checks("kernels", "kernels"),
            _checks("decode", "decode"),
            _checks("decode-narrow", "decode", "--candidates", "narrow-step"),
            _checks("decode-merged", "decode", "--candidates", "merged-step"),
            _checks("norms", "bits", "--candidates", "triton-norm"),
        ),
        "Is a tile of `bits` red and `bits-of-shared-columns` green? Set SHARED_COLUMNS = 32 in "
        "sruserve/kernels/triton/tiles.py. Is the tile of 8 columns alone red? Then narrow-step is "
        "for `fast`. Is a norm red in `bits` and green in `norms`? The server chooses ours by "
        "itself.",
        together=True,
    ),
    2: Stage(
        tuple(Step(part, (*_UNCHECKED, part)) for part in ("decode", "scan", "layers")),
        "A kernel that does nothing, and the parts at S 1; chunks against one after another; our "
        "products against cuBLAS. Compare each with bench/results/notes-gpu.md.",
    ),
    3: Stage(
        (Step("tests", _TESTS, ("pytest", "xdist")),),
        "The first failure of each file, in stage-3.jsonl. Run the stage again for what was cut "
        "off: compiled kernels are kept.",
    ),
    4: Stage(
        (
            _variant("decode", "narrow-step"),
            _variant("decode", "merged-step"),
            *(Step(part, (*_UNCHECKED, part)) for part in ("tiles", "states")),
        ),
        "Decoding with each candidate, against stage 2; the best tile of each table "
        "against the shipped one, tiles with other bits, and memory that grows.",
    ),
    5: Stage(
        (
            Step(
                "races",
                (*_RACECHECK, *_BENCH, "--only-checks", "--quick", "--groups", "decode"),
                ("compute-sanitizer",),
            ),
            _profile("scan_kernel", "scan"),
            _profile("step_kernel", "decode"),
            _profile("linear_kernel", "layers"),
            Step("peer", (*_UNCHECKED, "peer")),
        ),
        "Hazards in stage-5-races.log; in the profiles the share of peak bandwidth, stalls and "
        "bank conflicts.",
    ),
}


def first_hour(
    arguments: Sequence[str], stages: Mapping[int, Stage] = STAGES, root: Path = ROOT
) -> int:
    """Run one stage; returns 1 if anything was red, left out or cut off.

    root: its folder `build` gets the results, unless the arguments name another.
    """
    parser = argparse.ArgumentParser(
        "python -m bench.gpu first-hour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stage", type=int, choices=stages, required=True)
    parser.add_argument(
        "--results",
        type=Path,
        default=root / "build" / "first-hour",
        help="folder for all that it finds; default: %(default)s",
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try it")
    parser.add_argument(
        "--budget-s", type=float, default=_STAGE_SECONDS, help="default: %(default)s"
    )
    args = parser.parse_args(arguments)
    folder = args.results.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lines, end = folder / f"stage-{args.stage}.jsonl", monotonic() + args.budget_s
    earlier = lines.stat().st_size if lines.exists() else 0  # of runs before this one
    outcomes = []
    stage, running = stages[args.stage], set[subprocess.Popen[bytes]]()
    interrupted = threading.Event()

    def outcome_of(step: Step) -> str:
        seconds = end - monotonic()
        return _missing(step) or _run(step, args, folder, lines, seconds, running, interrupted)

    with ThreadPoolExecutor(len(stage.steps) if stage.together else 1) as pool:
        try:
            for step, outcome in zip(stage.steps, pool.map(outcome_of, stage.steps), strict=True):
                outcomes.append(outcome)
                _append(lines, {"step": step.name, "outcome": outcome})
                print(f"{step.name}: {outcome}", flush=True)
        except KeyboardInterrupt:
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    for red in _red(lines, earlier):
        print(f"RED: {red}")
    print(f"All results: {lines}\nLook at: {stage.look_at}", flush=True)
    return int(any(outcome != "green" for outcome in outcomes))


def _missing(step: Step) -> str:
    for tool in step.tools:
        if shutil.which(tool) is None and importlib.util.find_spec(tool) is None:
            return f"left out, because {tool} is not on this machine"
    return ""


def _run(
    step: Step,
    args: argparse.Namespace,
    folder: Path,
    lines: Path,
    seconds: float,
    running: set[subprocess.Popen[bytes]],
    interrupted: threading.Event,
) -> str:
    """Run a step for at most so many seconds; returns what became of it.

    running: has the step's process while it runs. interrupted: whether to end it at once, because
        it began too late to be found there.
    """
    if seconds <= 0:
        return "left out, because the time of the stage is over"
    command = list(step.command)
    if "bench.gpu" in command:
        command += ["--lines", str(lines), "--results", str(folder)]
        command += ["--quick"] * (args.quick and "--quick" not in command)
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(folder / "triton-cache"),
        "BENCH_GPU_LINES": str(lines),
    }
    with (folder / f"stage-{args.stage}-{step.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        running.add(process)
        try:
            code = process.wait(0 if interrupted.is_set() else seconds)
        except subprocess.TimeoutExpired:
            return f"cut off after {seconds:.0f} s; what it wrote before is kept"
        finally:
            running.discard(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return "green" if code == 0 else f"red: exit code {code}"


def _append(lines: Path, finding: dict[str, Any]) -> None:
    """Append a line, also after one that a process was cut off in."""
    with lines.open("ab+") as file:
        file.seek(-min(1, file.tell()), os.SEEK_END)
        begin = "" if file.read() in (b"", b"\n") else "\n"
        file.write(f"{begin}{json.dumps(finding)}\n".encode())


def _red(lines: Path, begin: int) -> Iterator[str]:
    """What was not as it should be, in the words of the lines after `begin` bytes."""
    for line in lines.read_bytes()[begin:].splitlines():
        try:
            finding = json.loads(line)
        except ValueError:  # a process was cut off while it wrote
            continue
        if finding.get("met") is False:
            yield f"{finding['what']}: {finding['value']:g} {finding['unit']}"
        elif "broke" in finding:
            yield finding["broke"]
        elif finding.get("test") and finding["outcome"] == "failed":
            yield finding["test"]
