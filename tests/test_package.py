"""The content of an installed package, which works without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build_wheel(folder: Path, **environment: str) -> Path:
    """Build the wheel from a copy of the tree, so that the tree does not change."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        check=True,
        env={**os.environ, **environment},
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_the_kernel_the_scripts_the_models_and_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert f"sruserve/kernels/cpu/_kernel{suffix}" in names
    assert "sruserve/py.typed" in names
    for script in (ROOT / "sruserve/server/streams/redis").glob("*.lua"):
        assert script.relative_to(ROOT).as_posix() in names
    for page in (ROOT / "sruserve/server/http/swagger_ui").iterdir():
        assert page.relative_to(ROOT).as_posix() in names
    for model in ("question-type", "shakespeare"):
        assert f"sruserve/demo/{model}/model.safetensors" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "examples/"))]


def test_the_bundled_models_take_at_most_20_megabytes(wheel: Path) -> None:
    entries = zipfile.ZipFile(wheel).infolist()
    assert sum(e.file_size for e in entries if "/demo/" in e.filename) <= 20_000_000


def test_without_a_compiler_the_package_works_and_says_once_what_is_missing(
    tmp_path: Path,
) -> None:
    wheel = build_wheel(tmp_path, CC="/bin/false")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "site")
    code = """
import torch
from sruserve.model.folder import load_model
from sruserve.kernels import kernel_name, single
from pathlib import Path
import sruserve
model = load_model(Path(sruserve.__file__).parent / "demo" / "shakespeare")
ids = torch.from_numpy(model.codec.encode("To be, or not to be")[0])
hidden = model.network.hidden(ids, single(model.network.layout.allocate(1), len(ids)))
print(kernel_name(), f"{model.network.logits(hidden).double().sum():.3f}")
"""
    results = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            env={**os.environ, "PYTHONPATH": str(site)},
            cwd=site,
            capture_output=True,
            text=True,
        )
        for site in (tmp_path / "site", ROOT)
    ]
    kernel, total = results[0].stdout.split()
    assert kernel == "reference"
    assert results[0].stderr.count("without its compiled CPU kernel") == 1
    assert results[0].stderr.count("\n") == 1
    assert results[1].stdout.split()[0].startswith("c-")
    assert float(total) == pytest.approx(float(results[1].stdout.split()[1]), rel=1e-4)


def test_the_pinned_triton_is_the_one_that_the_pinned_torch_asks_for() -> None:
    """A CUDA build of torch requires exactly one Triton: another pin could not be installed."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    wanted = {"2.11.0": "3.6.0", "2.13.0": "3.7.1"}  # as their wheels' metadata say
    assert pins["triton"] == wanted[pins["torch"]]


def test_make_says_what_it_does_before_every_step_that_takes_long(tmp_path: Path) -> None:
    venv = tmp_path / "new"
    made = [f"{venv}/{name}" for name in (".test", "triton-3.6.0", "releases/sru-2.6.0")]
    command = ["make", "--dry-run", f"VENV={venv}", "serve", "bench", *made]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    steps = [i for i, line in enumerate(lines) if " -m pip install " in line or " -m venv " in line]
    assert len(steps) == 6
    assert all(lines[step - 1].startswith("echo '") for step in steps)


@pytest.mark.parametrize(
    ("port", "extras"),
    [("8001", "grammars,grpc"), ("0", "grammars,grpc"), ("off", "grammars"), ("", "grammars")],
)
@pytest.mark.parametrize("served_before", [False, True])
def test_make_serve_installs_what_the_grpc_server_needs_if_its_port_is_set(
    tmp_path: Path, port: str, extras: str, served_before: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    if served_before:
        (tmp_path / ".serve").touch()
    done = subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path}", "serve"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "SRUSERVE_GRPC_PORT": port},
    )
    installed = re.findall(r"--editable '\.\[(.*)\]'", done.stdout)
    assert installed == ([] if served_before and "grpc" not in extras else [extras])


def test_make_serve_installs_nothing_for_grpc_after_make_test(tmp_path: Path) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path}", f"{tmp_path}/.test"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert re.search(rf"^touch .*{tmp_path}/\.serve-grpc$", done.stdout, re.MULTILINE)
