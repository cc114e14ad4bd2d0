"""Out of memory: recognise the error, and release torch's cached memory before a retry."""

import torch

from sruserve.kernels.captures import no_capture

# Messages for host memory, whose errors have no class of their own.
_MESSAGES = ("not enough memory", "can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that the device or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def release_cached(device: torch.device) -> None:
    """Return the GPU memory that torch caches but does not use, so that it can be allocated."""
    if device.type == "cuda":
        with no_capture():
            torch.cuda.empty_cache()
