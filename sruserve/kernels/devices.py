"""Choose the device to compute on, and check that the kernels can run there."""

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor

from sruserve.kernels.captures import new_stream

CPU = torch.device("cpu")
OLDEST_CAPABILITY = (8, 0)  # Ampere: the first with bfloat16 products and asynchronous copies
OLDEST_TRITON = (3, 6)

_NAME = re.compile(r"auto|cpu|cuda(?::(\d+))?", re.ASCII)
_VERSION = re.compile(r"""^__version__\s*=\s*['"](\d+)\.(\d+)""", re.MULTILINE)


class DeviceError(ValueError):
    """The device does not exist, or the kernels cannot run on it; the message says what to do."""


def resolve_device(name: str) -> torch.device:
    """Return the device for `name`: "cpu", "cuda" (the first GPU), "cuda:1", or "auto".

    "auto" is the first GPU if the kernels can run on it, otherwise the CPU.

    Raises `DeviceError` for an unknown name, and for a GPU on which the kernels cannot run.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise DeviceError(f"{name!r} is not a device: use auto, cpu, cuda or cuda:N")
    index = int(match[1] or 0)
    if name == "cpu" or (name == "auto" and why_no_gpu(index)):
        return CPU
    missing = why_no_gpu(index)
    if missing:
        raise DeviceError(f"cannot compute on {name}: {missing}; or use auto or cpu")
    return torch.device("cuda", index)


def why_no_gpu(index: int = 0) -> str:
    """Why the kernels cannot run on a GPU, and what to do; an empty string if they can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA: install the CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch sees no GPU: check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
    count = torch.cuda.device_count()
    if index >= count:
        are = "is 1 GPU" if count == 1 else f"are {count} GPUs"
        return f"there {are}, numbered from 0, so cuda:{index} does not exist"
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST_CAPABILITY:
        return (
            f"cuda:{index} ({torch.cuda.get_device_name(index)}) has compute capability "
            f"{_dotted(capability)}, but the kernels need {_dotted(OLDEST_CAPABILITY)} or higher: "
            "use another GPU or the CPU"
        )
    return missing_triton()


def missing_triton() -> str:
    """Why the installed Triton cannot be used, without importing it; an empty string if it can."""
    needs = f"the GPU kernels need Triton {_dotted(OLDEST_TRITON)} or newer"
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return f"{needs}, which is not installed: pip install triton"
    # Read the source, not the metadata: the distribution's name depends on who built it.
    match = _VERSION.search(Path(spec.origin).read_text())
    if match is None or (int(match[1]), int(match[2])) < OLDEST_TRITON:
        version = f"{match[1]}.{match[2]}" if match else "of unknown version"
        return f"{needs}, but {version} is installed: pip install --upgrade triton"
    return ""


def describe_device(device: torch.device) -> str:
    """Return one line for logs and `inspect`: a GPU's name, memory and compute capability."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{device} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB, "
        f"compute capability {properties.major}.{properties.minor})"
    )


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to `device`; the host does not wait for the copy."""
    if device.type == "cpu":
        return tensor
    if needs_pinned(device):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def needs_pinned(device: torch.device) -> bool:
    """Whether host memory must be pinned for copies that nobody waits for.

    On a CPU, device and host are one memory, and no copy is needed.
    """
    return device.type == "cuda"


def use_device(device: torch.device) -> None:
    """Make `device` this thread's current one: Triton launches there, wherever the tensors are."""
    if device.type == "cuda":
        torch.cuda.set_device(0 if device.index is None else device.index)


def use_own_stream(device: torch.device) -> None:
    """Make `device` this thread's current one, with a CUDA stream of the thread's own.

    Waits for the work on the default stream, where weights and states are filled.
    """
    use_device(device)
    if device.type == "cuda":
        torch.cuda.default_stream(device).synchronize()
        torch.cuda.set_stream(new_stream(device))


def memory_use(device: torch.device) -> tuple[int, int, int]:
    """This process's memory on a GPU, in bytes: its limit, the reserved part, and that in use.

    Asks PyTorch alone, not the GPU, so it never waits.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    limit = int(total * torch.cuda.get_per_process_memory_fraction(device))
    return limit, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)


def finish_work(device: torch.device) -> bool:
    """Wait for what this thread has started on a device. Returns whether the device responds.

    After a fault in a kernel every call fails, and the process has lost the GPU.
    """
    if device.type != "cuda":
        return True
    try:
        # Not the whole device: that would invalidate the graph that another thread captures.
        torch.cuda.current_stream(device).synchronize()
    except RuntimeError:
        return False
    return True


class StepThrottle:
    """Keeps the host at most one step ahead of a GPU when the host waits for no result."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None

    def step(self) -> None:
        """Record that a step was started, and wait for the end of the step before it."""
        if self._device.type != "cuda":
            return
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        if self._before is not None:
            self._before.synchronize()
        self._before = event


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
