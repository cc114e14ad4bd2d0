"""Copy streams: side streams for copies between the device and host memory."""

from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels.side_stream import CudaSideStream, InlineStream, SideStream


class CopyStream(SideStream, Protocol):
    """An ordered queue of copies that runs alongside the steps.

    is_async: copies may continue after `run` has returned, so the caller's memory is staged.
    """

    is_async: bool

    def allocate(self, rows: int, width: int) -> Tensor:
        """Allocate host memory that allows fast copies, (rows, width), float32."""
        ...


class InlineCopyStream(InlineStream):
    """Copies at once, for the CPU, where device and host share one memory."""

    is_async = False

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width)


class CudaCopyStream(CudaSideStream):
    """A CUDA stream for copies: it waits for the steps, and they wait for its events."""

    is_async = True

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width, pin_memory=True)


def copy_stream_for(device: torch.device) -> CopyStream:
    """Create the kind of copy stream that suits a device."""
    return CudaCopyStream(device) if device.type == "cuda" else InlineCopyStream()
