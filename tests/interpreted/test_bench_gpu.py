"""The complete GPU benchmark on tiny shapes, with Triton's interpreter instead of a GPU."""

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import __main__ as gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run it on")
def test_a_quick_run_checks_and_measures_everything_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.gpu", "--quick", "--results", str(tmp_path)])
    failed, output = gpu.main(), capsys.readouterr().out
    assert not failed, output[-4000:]
    report = json.loads(output.splitlines()[-1])
    assert report["bench"] == "gpu"
    figures = [check["what"] for check in report["checks"]]
    for part in (
        "checks that hold",
        "copy of",
        "scan, L",
        "1 layer, L",
        "decode, S 1, default: us per character",
        "decode, S 3, fast: characters/s",
        "parts of a step",
        "in place, float32, each continued once: states/s",
        "kept by the engine, 0 on the host, float32, each continued once: states/s",
        "kept by the engine, 5 on the host, float32, each continued once: states/s",
        "GPU memory reserved that rounds after the first add",
        "tiles of the scan",
        "tiles of products",
        "tiles of steps",
        "the whole run: seconds",
    ):
        assert any(part in figure for figure in figures), part
    assert all("floor" in "".join(case) for case in report["cases"].values() if "scan" in case)
    assert "left out" not in output
    assert not list(tmp_path.iterdir())
