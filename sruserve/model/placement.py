"""Where `auto` computes a model if there is a GPU: on it, unless the CPU may be the faster one."""

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.config import ModelConfig

WHY_CPU = (
    "auto computes its layers on the CPU, because no GPU has been measured to be faster at them; "
    "cuda computes them on the GPU"
)


def preferred_device(
    config: ModelConfig, dtype: str | None, name: str, device: torch.device
) -> torch.device:
    """Return the device for one model.

    dtype: the requested compute dtype; None: that of the config. float16 needs a GPU.
    name: the requested device. device: the one that it names.
    """
    if name != "auto" or not config.rnn.prefers_cpu or (dtype or config.dtype) == "float16":
        return device
    return CPU
