"""Where to compute: the device that was asked for, if the kernels can run there."""

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor

CPU = torch.device("cpu")
OLDEST_CAPABILITY = (8, 0)  # Ampere: the first with bfloat16 products and asynchronous copies
OLDEST_TRITON = (3, 6)

_NAME = re.compile(r"auto|cpu|cuda(?::(\d+))?", re.ASCII)
_VERSION = re.compile(r"""^__version__\s*=\s*['"](\d+)\.(\d+)""", re.MULTILINE)


class DeviceError(ValueError):
    """A device that is not there, or that the kernels cannot run on; says what to do."""


def resolve_device(name: str) -> torch.device:
    """The device that `name` means: "cpu", "cuda" (the first GPU), "cuda:1", or "auto".

    "auto" is the first GPU where the kernels can run on it, else the CPU. Raises `DeviceError` if a
    GPU is asked for and cannot be had.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise DeviceError(f"{name!r} is no device; say auto, cpu, cuda or cuda:N")
    index = int(match[1] or 0)
    if name == "cpu" or (name == "auto" and missing_for_gpu(index)):
        return CPU
    missing = missing_for_gpu(index)
    if missing:
        raise DeviceError(f"cannot compute on {name}: {missing}; or say auto, or cpu")
    return torch.device("cuda", index)


def missing_for_gpu(index: int = 0) -> str:
    """What keeps the kernels from running on a GPU, and what to do; empty: nothing does."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA: install the CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch sees no GPU: check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
    count = torch.cuda.device_count()
    if index >= count:
        are = "is 1 GPU" if count == 1 else f"are {count} GPUs"
        return f"there {are}, numbered from 0: cuda:{index} is not one"
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST_CAPABILITY:
        return (
            f"cuda:{index} ({torch.cuda.get_device_name(index)}) has compute capability "
            f"{_dotted(capability)} and the kernels need {_dotted(OLDEST_CAPABILITY)}: use another "
            "GPU, or the CPU"
        )
    return missing_triton()


def missing_triton() -> str:
    """What is wrong with the Triton that is here, without importing it; empty: nothing."""
    needs = f"the GPU kernels need Triton {_dotted(OLDEST_TRITON)} or newer"
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return f"{needs}, which is not installed: pip install triton"
    # Not the metadata: the package's name there depends on who built it.
    found = _VERSION.search(Path(spec.origin).read_text())
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TRITON:
        version = f"{found[1]}.{found[2]}" if found else "of unknown version"
        return f"{needs}, and {version} is installed: pip install --upgrade triton"
    return ""


def describe_device(device: torch.device) -> str:
    """One line for logs and `inspect`: a GPU's name, memory and compute capability."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{device} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB, "
        f"compute capability {properties.major}.{properties.minor})"
    )


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to `device`; the host does not wait for the copy."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def use_device(device: torch.device) -> None:
    """Make it this thread's device: Triton launches there, wherever its tensors are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def use_own_stream(device: torch.device) -> None:
    """Make it this thread's device, with a CUDA stream that no other thread's work is in.

    It comes after all that was started there so far: weights and states that are being filled.
    """
    use_device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def is_dead(device: torch.device) -> bool:
    """Whether a GPU answers this process no more: after a fault in a kernel every call fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


class Pace:
    """Keeps the host at most one step ahead of a GPU where no result makes it wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None

    def step(self) -> None:
        """A step was started: wait for the end of the one before it."""
        if self._device.type != "cuda":
            return
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        if self._before is not None:
            self._before.synchronize()
        self._before = event


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
