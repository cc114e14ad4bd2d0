"""The stages of the first hour on a GPU: a step that is red, cut off or missing ends no stage."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import __main__ as gpu
from bench.gpu import first_hour as module
from bench.gpu.first_hour import STAGES, Stage, Step, first_hour
from sruserve.kernels.triton import tiles

WRITES = (
    "import json, os; print('said'); "
    "open(os.environ['BENCH_GPU_LINES'], 'a').write(json.dumps(dict(what='bits', value=3, unit='', "
    "met=False)) + chr(10)); "
)


def python(name: str, code: str, *tools: str) -> Step:
    return Step(name, (sys.executable, "-c", code), tools)


def run(folder: Path, *steps: Step, budget_s: str = "300") -> tuple[int, list[dict[str, Any]]]:
    arguments = ["--stage", "1", "--results", str(folder), "--budget-s", budget_s]
    code = first_hour(arguments, {1: Stage(steps, "the bits")})
    lines = (folder / "stage-1.jsonl").read_text().splitlines()
    return code, [json.loads(line) for line in lines]


def test_a_red_step_is_reported_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(
        tmp_path, python("red", WRITES + "raise SystemExit(1)"), python("next", WRITES)
    )
    assert code == 1
    outcomes = {each["step"]: each["outcome"] for each in lines if "step" in each}
    assert outcomes == {"red": "red: exit code 1", "next": "green"}
    assert (tmp_path / "stage-1-red.log").read_text() == "said\n"
    out = capsys.readouterr().out
    assert "RED: bits: 3" in out
    assert "Look at: the bits" in out


def test_without_a_folder_the_results_are_in_the_checkouts_build(tmp_path: Path) -> None:
    stages = {1: Stage((python("good", "print('said')"),), "the bits")}
    assert first_hour(["--stage", "1"], stages, tmp_path) == 0
    assert (tmp_path / "build" / "first-hour" / "stage-1-good.log").read_text() == "said\n"


def test_steps_share_the_compiled_kernels_in_the_folder(tmp_path: Path) -> None:
    tells = "import os; print(os.environ['TRITON_CACHE_DIR'])"
    run(tmp_path, python("first", tells), python("second", tells))
    for step in ("first", "second"):
        log = tmp_path / f"stage-1-{step}.log"
        assert log.read_text() == f"{tmp_path / 'triton-cache'}\n"


def test_a_line_that_was_cut_off_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = "open(os.environ['BENCH_GPU_LINES'], 'a').write('{' + chr(34) + 'what')"
    stages = {1: Stage((python("cut", WRITES + cut),), "the bits")}
    arguments = ["--stage", "1", "--results", str(tmp_path)]
    assert first_hour(arguments, stages) == 0
    assert "RED: bits: 3" in capsys.readouterr().out
    assert '{"what\n{"step": "cut", "outcome": "green"}\n' in (
        (tmp_path / "stage-1.jsonl").read_text()
    )


def test_a_stage_that_runs_again_tells_what_is_red_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, python("bits", WRITES))
    assert "RED: bits: 3" in capsys.readouterr().out
    _, lines = run(tmp_path, python("bits", "print()"))
    assert "RED" not in capsys.readouterr().out
    assert [each["what"] for each in lines if "what" in each] == ["bits"]


def test_a_step_that_takes_too_long_is_cut_off_and_later_ones_are_left_out(tmp_path: Path) -> None:
    endless = python("endless", WRITES + "import time; time.sleep(600)")
    code, lines = run(tmp_path, endless, python("late", WRITES), budget_s="5")
    assert code == 1
    assert "cut off" in lines[-2]["outcome"]
    assert "time of the stage is over" in lines[-1]["outcome"]


def test_a_step_whose_tool_is_missing_is_left_out(tmp_path: Path) -> None:
    code, lines = run(tmp_path, python("profile", WRITES, "no-such-profiler"))
    assert code == 1
    assert "no-such-profiler is not on this machine" in lines[-1]["outcome"]


def test_checks_run_side_by_side_and_are_reported_in_their_order(tmp_path: Path) -> None:
    """The first one waits for a file of the second one."""
    file = tmp_path / "written"
    waits = (
        f"import pathlib, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)"
    )
    steps = python("first", waits), python("second", f"open({str(file)!r}, 'w').close()")
    stages = {1: Stage(steps, "the bits", together=True)}
    arguments = ["--stage", "1", "--results", str(tmp_path), "--budget-s", "60"]
    assert first_hour(arguments, stages) == 0
    lines = (tmp_path / "stage-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == ["first", "second"]


def test_an_interrupt_ends_the_steps_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_append", interrupted)
    steps = python("quick", "print()"), python("endless", "import time; time.sleep(600)")
    stages = {1: Stage(steps, "the bits", together=True)}
    with pytest.raises(KeyboardInterrupt):
        first_hour(["--stage", "1", "--results", str(tmp_path)], stages)


def test_a_step_that_begins_after_an_interrupt_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, begun = threading.Event(), list[subprocess.Popen[bytes]]()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, **options: Any) -> None:
            if wait:  # at the end: the steps that run have been looked for
                looked.set()
            super().shutdown(wait, **options)

    class Process(subprocess.Popen[bytes]):
        def __init__(self, command: Sequence[str], **options: Any) -> None:
            if "sleep" in command[-1]:
                assert looked.wait(60)
            super().__init__(command, **options)
            begun.append(self)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(module, "_append", interrupted)
    steps = python("quick", "print()"), python("late", "import time; time.sleep(20)")
    with pytest.raises(KeyboardInterrupt):
        first_hour(
            ["--stage", "1", "--results", str(tmp_path)],
            {1: Stage(steps, "the bits", together=True)},
        )
    assert [process.returncode for process in begun] == [0, -signal.SIGKILL]


def test_all_green_is_green(tmp_path: Path) -> None:
    assert run(tmp_path, python("good", "print()"))[0] == 0


def test_the_stages_run_every_check_and_every_part_once_at_least() -> None:
    words = {word for stage in STAGES.values() for step in stage.steps for word in step.command}
    assert set(gpu.GROUPS) | set(gpu.PARTS) <= words


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_shared_columns_are_those_of_every_tile_that_needs_the_bits_of_others(
    capability: tuple[int, int], dtype: torch.dtype
) -> None:
    tiles.share_columns(32)
    try:
        chosen = [tiles.linear_tile(outputs, dtype, capability) for outputs in (96, 6144)]
        chosen += [tiles.decode_tile(1, dtype, capability), tiles.step_tile(1, dtype, capability)]
        chosen += [tiles.loadable(tile, 203, dtype) for tile in chosen]
        vector = tiles.step_tile(1, dtype, capability, fast=True)
    finally:
        tiles.share_columns(tiles.SHARED_COLUMNS)
    assert {tile.columns for tile in chosen} == {32}
    assert vector.columns == tiles.STEP_VECTOR[0].columns
