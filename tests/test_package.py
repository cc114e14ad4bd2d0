"""The content of an installed package, which works without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parent.parent
KERNEL = f"sruserve/kernels/cpu/_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
REPOSITORY = "https://code.example/group/sruserve"
_LINK = re.compile(r"\[[^]]*\]\(([^)]*)\)")


def copy_tree(folder: Path) -> Path:
    """Copy the tree, which building changes; not what other programs may write meanwhile."""
    source = folder / "source"
    made = (".git", ".venv", ".hypothesis", ".*_cache", "*.so", "*.egg-info", "__pycache__")
    ignored = shutil.ignore_patterns(*made)

    def ignore(path: str, names: list[str]) -> set[str]:
        return ignored(path, names) | ({"build", "dist", "site"} if Path(path) == ROOT else set())

    shutil.copytree(ROOT, source, ignore=ignore)
    return source


def build_wheel(folder: Path, *, compiled: bool = True, **environment: str) -> Path:
    """Build the wheel from a copy of the tree.

    compiled: the kernel is the tree's, which `make` has compiled with the same setup.py; the
    compiler takes longer than everything else here.
    """
    source = copy_tree(folder)
    if compiled:
        built = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        (built / KERNEL).parent.mkdir(parents=True)
        shutil.copy2(ROOT / KERNEL, built / KERNEL)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"  # as pip
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        check=True,
        env={**os.environ, **environment},
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def build_sdist(folder: Path, repository: str) -> dict[str, bytes]:
    """The files of the source distribution of a repository with a public address."""
    source = copy_tree(folder)
    project = source / "pyproject.toml"
    filled_in = re.sub(
        '(?m)^repository = ".*"$', f'repository = "{repository}"', project.read_text()
    )
    project.write_text(filled_in)
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        return {
            member.name.partition("/")[2]: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return build_sdist(tmp_path_factory.mktemp("sdist"), REPOSITORY)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_the_kernel_the_scripts_the_models_and_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert zipfile.ZipFile(wheel).read(KERNEL) == (ROOT / KERNEL).read_bytes()
    assert "sruserve/py.typed" in names
    for script in (ROOT / "sruserve/server/streams/redis").glob("*.lua"):
        assert script.relative_to(ROOT).as_posix() in names
    for folder in ("page", "swagger_ui"):
        for file in (ROOT / "sruserve/server/http" / folder).iterdir():
            assert file.relative_to(ROOT).as_posix() in names
    for model in ("entities", "numbers", "question-type", "sentiment", "shakespeare"):
        assert f"sruserve/demo/{model}/model.safetensors" in names
    assert "sruserve/demo/README.md" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "examples/"))]


def links(page: str) -> list[str]:
    """The targets of the links outside of programs."""
    return _LINK.findall(re.sub(r"(?ms)^```.*?^```", "", page))


def page_of(metadata: bytes) -> tuple[Message, str]:
    """The metadata of a package, and the page that an index shows."""
    headers = message_from_bytes(metadata)
    return headers, str(headers.get_payload())


def test_without_a_public_address_the_package_s_page_has_no_broken_links(tmp_path: Path) -> None:
    headers, page = page_of(build_sdist(tmp_path, "")["PKG-INFO"])
    assert headers["Description-Content-Type"] == "text/markdown"
    assert headers.get_all("Project-URL") is None
    assert [target for target in links(page) if not target.startswith("http")] == []
    assert "![" not in page
    assert "https://arxiv.org/abs/1709.02755" in links(page)


def test_the_links_of_the_package_s_page_lead_to_the_repository(sdist: dict[str, bytes]) -> None:
    headers, page = page_of(sdist["PKG-INFO"])
    assert f"Repository, {REPOSITORY}" in headers.get_all("Project-URL", [])
    targets = links(page)
    relative = links((ROOT / "README.md").read_text())
    assert len(targets) == len(relative)
    for target, written in zip(targets, relative, strict=True):
        if written.startswith("#"):
            assert target == REPOSITORY + written
        elif ":" in written:
            assert target == written
        else:
            kind = "raw" if written.endswith(".png") else "blob"
            assert target == f"{REPOSITORY}/{kind}/HEAD/{written}"
    for url in headers.get_all("Project-URL", []):
        path = url.partition("/HEAD/")[2]
        assert (ROOT / path).exists(), url


def test_the_page_s_programs_are_those_of_the_readme(sdist: dict[str, bytes]) -> None:
    programs = re.compile(r"(?ms)^```.*?^```")
    page = page_of(sdist["PKG-INFO"])[1]
    assert programs.findall(page) == programs.findall((ROOT / "README.md").read_text())


def test_a_source_distribution_holds_the_documentation_and_the_examples(
    sdist: dict[str, bytes],
) -> None:
    for folder in ("docs", "examples"):
        for path in (ROOT / folder).iterdir():
            if path.is_file():
                assert path.relative_to(ROOT).as_posix() in sdist
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "setup.py"):
        assert name in sdist
    headers = (ROOT / "sruserve/kernels/cpu").glob("*.h")
    assert {path.relative_to(ROOT).as_posix() for path in headers} <= sdist.keys()
    assert not [name for name in sdist if name.startswith(("tests/", "bench/")) or ".so" in name]


def test_the_bundled_models_take_at_most_20_megabytes(wheel: Path) -> None:
    entries = zipfile.ZipFile(wheel).infolist()
    assert sum(e.file_size for e in entries if "/demo/" in e.filename) <= 20_000_000


def test_without_a_compiler_the_package_works_and_says_once_what_is_missing(
    tmp_path: Path,
) -> None:
    wheel = build_wheel(tmp_path, compiled=False, CC="/bin/false")
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
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
    )
    kernel, total = done.stdout.split()
    assert kernel == "reference"
    assert done.stderr.count("without its compiled CPU kernel") == 1
    assert done.stderr.count("\n") == 1
    compiled, expected = preloaded.run("-c", code, folder=ROOT).stdout.split()
    assert compiled.startswith("c-")
    assert float(total) == pytest.approx(float(expected), rel=1e-4)


def test_the_pinned_triton_is_the_one_that_the_pinned_torch_asks_for() -> None:
    """A CUDA build of torch requires exactly one Triton: another pin could not be installed."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    required = {"2.11.0": "3.6.0", "2.13.0": "3.7.1"}  # as their wheels' metadata say
    assert pins["triton"] == required[pins["torch"]]


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
