"""The machine of a measurement: hardware, versions and commit."""

import importlib
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import sleep

import torch

from sruserve import __version__
from sruserve.kernels import kernel_name

ROOT = Path(__file__).parent.parent.parent


def describe_machine(*packages: str) -> dict[str, str | int]:
    """Return the facts that every figure needs.

    packages: peers whose versions matter. "triton" among them means that a GPU is measured.
    """
    on_gpu = "triton" in packages
    device = torch.device("cuda" if on_gpu else "cpu")
    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "sruserve": __version__,
        "kernel": kernel_name(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    facts |= {name: _version(name) for name in packages}
    if on_gpu:
        facts |= describe_gpu()
    facts["busy_before_percent"] = busy_percent()
    facts["commit"] = _commit()
    facts["date"] = datetime.now(UTC).date().isoformat()
    return facts


def describe_gpu() -> dict[str, str | int]:
    """Return the GPU's name, memory and driver, and the version of the imported Triton."""
    facts: dict[str, str | int] = {"triton": importlib.import_module("triton").__version__}
    if not torch.cuda.is_available():
        return facts | {"gpu": "none: interpreted"}
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return facts | {
        "gpu": gpu.name,
        "gpu_memory_gib": round(gpu.total_memory / 2**30),
        "multiprocessors": gpu.multi_processor_count,
        "capability": f"{gpu.major}.{gpu.minor}",
        "cuda": torch.version.cuda or "none",
        "driver": _driver(),
    }


def machine_class(facts: dict[str, str | int]) -> str:
    """Return the part of a file name that is equal for machines of one kind."""
    if "gpu" in facts:
        return re.sub(r"[^a-z0-9]+", "-", str(facts["gpu"]).lower()).strip("-")
    kernel = str(facts["kernel"]).removeprefix("c-")
    name = f"{facts['processor']} {facts['cores']} cores {kernel}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def busy_percent(seconds: float = 0.5) -> int:
    """Return the share of the machine that is in use; on two cores, other work ruins a run."""
    before = _processor_times()
    sleep(seconds)
    spent = [now - then for now, then in zip(_processor_times(), before, strict=True)]
    idle = spent[3] + spent[4]  # idle, and waiting for a disk
    return round(100 * (1 - idle / sum(spent))) if any(spent) else 0


def _processor_times() -> list[int]:
    """Return the ticks of all cores, in the order of /proc/stat."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return [0] * 8
    return [int(ticks) for ticks in line.split()[1:9]]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the checkout's commit, with `-dirty` if files other than results differ from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    if commit is None:
        return "unknown"
    changed = _git("status", "--porcelain", "--", ".", ":!bench/results")
    return f"{commit}-dirty" if changed else commit


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.split("\n", 1)[0].strip()


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
