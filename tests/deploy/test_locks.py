"""The files with hashes hold all that the images install, in the versions of constraints.txt."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock import OF_TORCH

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-torch.lock")


def locked(name: str) -> dict[str, list[str]]:
    """By `package==version`, the hashes of its files."""
    hashes_of_package: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("#"):
            continue
        if pinned := re.match(r"[a-z0-9-]+==[\w.]+(?= )", line):
            hashes = hashes_of_package[pinned[0]] = []
            continue
        match = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?", line)
        assert match, f"{name}: {line}"
        hashes.append(match[1])
    return hashes_of_package


def versions(pins: list[str]) -> dict[str, str]:
    return {canonicalize_name(n): v for n, v in (pin.split("==") for pin in pins)}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes(name: str) -> None:
    packages = locked(name)
    assert packages
    assert all(packages.values())


def test_every_version_is_the_one_that_is_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = versions([line for line in lines if "==" in line])
    for name in LOCKS:
        for package, version in versions(list(locked(name))).items():
            assert tested.get(package, version) == version, package


def test_what_only_torch_needs_is_apart() -> None:
    rest, of_torch = (locked(name) for name in LOCKS)
    assert all(OF_TORCH.match(pin) for pin in of_torch)
    assert not any(OF_TORCH.match(pin) for pin in rest)
    assert "torch" in versions(list(of_torch))


def test_nothing_that_the_server_needs_is_missing() -> None:
    """The images install without looking for dependencies, so all of them must be listed."""
    listed = versions([pin for name in LOCKS for pin in locked(name)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    in_images = [r for name in ("grammars", "grpc", "otel", "redis") for r in extras[name]]
    pending = [Requirement(r) for r in (*project["dependencies"], *in_images)]
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        package = canonicalize_name(requirement.name)
        for_extras = {"", *requirement.extras}
        assert package in listed, f"{package}: run `make lock`"
        assert listed[package] in requirement.specifier, f"{package}: run `make lock`"
        if f"{package} {for_extras}" in seen:
            continue
        seen.add(f"{package} {for_extras}")
        try:
            further = [Requirement(r) for r in requires(package) or ()]
        except PackageNotFoundError:  # not on this platform
            continue
        pending += [
            r
            for r in further
            if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in for_extras)
        ]
    assert len(seen) > 40
