"""Where `auto` computes a model if there is a GPU: families not proven there stay on the CPU."""

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.config import ModelConfig

UNPROVEN = (
    "its family has not been measured on a GPU yet: auto computes it on the CPU, cuda on the GPU"
)


def preferred_device(
    config: ModelConfig, dtype: str | None, name: str, device: torch.device
) -> torch.device:
    """Return the device for one model.

    dtype: the compute dtype that was asked for; None: that of the config. float16 needs a GPU.
    name: the device that was asked for. device: the one that it names.
    """
    if name != "auto" or not config.rnn.prefers_cpu or (dtype or config.dtype) == "float16":
        return device
    return CPU
