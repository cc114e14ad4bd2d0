"""`make oldest` installs one version of each dependency, the oldest that is allowed."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from deploy.oldest import EXTRAS, requirements

ROOT = Path(__file__).parents[2]


def test_every_dependency_has_the_oldest_version_that_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = {r.name: r.specifier for line in requirements() if (r := Requirement(line)).specifier}
    for line in (*project["dependencies"], *(r for name in EXTRAS for r in extras[name])):
        requirement = Requirement(line)
        lowest = next(s.version for s in requirement.specifier if s.operator == ">=")
        assert chosen[requirement.name] == Requirement(f"x=={lowest}").specifier, line


def test_what_only_tests_need_has_the_version_that_is_tested() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert set(requirements()) & {line for line in pins if line.startswith("pytest==")}


def test_another_torch_can_be_named() -> None:
    assert "torch==2.13.0" in requirements("2.13.0")
    assert "torch==2.13.0" not in requirements()
