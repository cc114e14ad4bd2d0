"""Write requirements.lock and requirements-torch.lock: every version with the hashes of its files.

`make lock` runs it after a change of pyproject.toml or constraints.txt. The hashes are those that
PyPI gives; uv resolves for all platforms at once. What only PyTorch's CUDA build needs is in a file
of its own, with PyTorch, because the CPU build has another index and none of that.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")
HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt.\n"


def resolve() -> str:
    """All that `sruserve[grammars,grpc,otel,redis]` needs, as lines for pip."""
    command = [
        *("uv", "pip", "compile", "pyproject.toml"),
        *("--extra", "grammars", "--extra", "grpc", "--extra", "otel", "--extra", "redis"),
        *("--constraint", "constraints.txt", "--universal", "--python-version", "3.11"),
        "--no-config",
        *("--generate-hashes", "--no-header", "--no-annotate", "--no-build", "--quiet"),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


def main() -> None:
    packages = re.split(r"(?m)^(?=[A-Za-z])", resolve())[1:]
    for name, of_torch in (("requirements.lock", False), ("requirements-torch.lock", True)):
        chosen = [p for p in packages if bool(OF_TORCH.match(p)) is of_torch]
        (ROOT / name).write_text(HEAD + "".join(chosen))


if __name__ == "__main__":
    main()
