"""Fails where work would make the host wait for a GPU, or could not be captured there."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_WAITS = {
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy),
    *(torch.Tensor.nonzero, torch.nonzero, torch.masked_select, torch.Tensor.masked_select),
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
    *(torch.repeat_interleave, torch.Tensor.repeat_interleave, torch.Tensor.unique),
}
_INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class NoWait(TorchFunctionMode):
    """A context in which torch's calls that wait for a device raise `AssertionError`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        assert func not in _WAITS, f"{func.__name__} waits for the device"
        assert not (func in _INDEXED and _has_mask(args[1])), "a mask as index waits for the device"
        return func(*args, **(kwargs or {}))


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype is torch.bool for part in parts)
