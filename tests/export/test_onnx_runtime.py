"""ONNX Runtime tells nobody what it runs."""

import os
import subprocess
import sys
from pathlib import Path

from sruserve.export.onnx.export import export_onnx
from tests.support import save_random_model

LOAD = """
import sys
import sruserve.export.runtime.load as runtime
runtime.load_any(__import__("pathlib").Path(sys.argv[1]))
"""


def test_a_process_that_loads_a_graph_leaves_no_files_in_its_home(tmp_path: Path) -> None:
    export_onnx(save_random_model(tmp_path / "m", vocab_size=9), tmp_path / "onnx")
    home = tmp_path / "home"
    home.mkdir()
    folders = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    environment = {**os.environ, **folders}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "onnx")]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert list(home.rglob("*")) == []
