"""Running out of memory: how it shows, and what can be given back before the next try."""

import torch

_SAID = ("not enough memory", "can't allocate memory", "out of memory")  # of the host: no own class


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def give_back(device: torch.device) -> None:
    """Return what torch holds of a GPU's memory without using it, so that it can be had anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
