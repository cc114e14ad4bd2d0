"""The memory of a captured decode: one slot for every stream of a bucket."""

from dataclasses import dataclass, fields
from math import prod

import torch
from torch import Tensor

WINDOW = 64  # last tokens that the repetition penalty applies to
_ALIGN = 16  # bytes: the alignment of the kernels' pointers


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """The inputs of a burst, on the CPU, one entry for each stream.

    tokens: (streams) int64, the last token of each, which the first step consumes.
    source, target: (streams) int64, the state row to read (-1: zeros) and the one to write.
    uniforms: (steps, streams) float64, in [0, 1).
    temperature, top_p, min_p, penalty: (streams) float32; temperature 0 picks the most likely
        token.
    top_k: (streams) int32; 0 keeps all tokens.
    window: (streams, WINDOW) int64, the last tokens, oldest first; -1 for none.
    """

    tokens: Tensor
    source: Tensor
    target: Tensor
    uniforms: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    top_k: Tensor
    window: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, max_streams: int) -> list["DecodeInputs"]:
        """Split into parts of at most `max_streams` streams, in order."""
        parts = []
        for first in range(0, len(self), max_streams):
            part = slice(first, first + max_streams)
            parts.append(
                DecodeInputs(
                    **{
                        field.name: value[:, part] if field.name == "uniforms" else value[part]
                        for field in fields(self)
                        for value in [getattr(self, field.name)]
                    }
                )
            )
        return parts


# An empty slot is a stream that reads zeros, writes nothing and picks the most likely token.
_EMPTY: dict[str, float] = {
    "tokens": 0,
    "source": -1,
    "target": -1,
    "uniforms": 0.0,
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "penalty": 1.0,
    "top_k": 0,
    "window": -1,
    "position": 0,
}
_DTYPES = {
    **dict.fromkeys(["tokens", "source", "target", "window", "position"], torch.int64),
    "uniforms": torch.float64,
    **dict.fromkeys(["temperature", "top_p", "min_p", "penalty"], torch.float32),
    "top_k": torch.int32,
}


class Slots:
    """The tensors of `DecodeInputs` for `size` streams on `device`, at addresses that never change.

    Each step overwrites `tokens` with the tokens it picks. `position`, (size) int64, counts the
    burst's steps: a step reads row `position` of `uniforms`, and writes its token to row `position`
    of `history`, (steps, size) int64, and to place `position % WINDOW` of `window`, a ring.
    """

    tokens: Tensor
    source: Tensor
    target: Tensor
    uniforms: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    top_k: Tensor
    window: Tensor
    position: Tensor

    def __init__(self, size: int, steps: int, device: torch.device) -> None:
        self.size = size
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_EMPTY, (size,))
        shapes |= {"uniforms": (steps, size), "window": (size, WINDOW)}
        self._device, self._host, self._fields = _buffers(shapes, device)
        self._loaded = 0
        for name, field in self._fields.items():
            field.fill_(_EMPTY[name])
        self.history = torch.zeros(steps, size, dtype=torch.int64, device=device)
        self._picked = torch.zeros(steps, size, dtype=torch.int64, pin_memory=_pinned(device))
        self.reset()
        for name, view in _views(self._device, shapes).items():
            setattr(self, name, view)

    def load(self, streams: DecodeInputs) -> None:
        """Put streams in the first slots, in one copy to the device, and empty the others."""
        count, steps = len(streams), len(streams.uniforms)
        for name, place in self._fields.items():
            if name == "position":
                continue
            if name == "uniforms":
                place[:steps, :count] = streams.uniforms
                continue
            place[:count] = getattr(streams, name)
            place[count : self._loaded] = _EMPTY[name]
        self._loaded = count
        self.reset()

    def reset(self) -> None:
        """Return the slots to the start of the burst that was loaded last."""
        self._device.copy_(self._host, non_blocking=True)

    def fetch(self, steps: int) -> None:
        """Start copying the tokens of the burst's first `steps` steps to the CPU."""
        self._picked[:steps].copy_(self.history[:steps], non_blocking=True)

    def picked(self, steps: int, count: int) -> Tensor:
        """Return the tokens of the burst's first `steps` steps, (steps, count), after the copy."""
        return self._picked[:steps, :count].clone()


def _buffers(
    shapes: dict[str, tuple[int, ...]], device: torch.device
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return a block of bytes on the device, its twin on the CPU, and the fields of the twin."""
    size = sum(_padded(name, shape) for name, shape in shapes.items())
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=_pinned(device))
    return torch.zeros(size, dtype=torch.uint8, device=device), host, _views(host, shapes)


def _views(block: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    views, offset = {}, 0
    for name, shape in shapes.items():
        dtype = _DTYPES[name]
        end = offset + prod(shape) * dtype.itemsize
        views[name] = block[offset:end].view(dtype).view(shape)
        offset += _padded(name, shape)
    return views


def _padded(name: str, shape: tuple[int, ...]) -> int:
    return -(-prod(shape) * _DTYPES[name].itemsize // _ALIGN) * _ALIGN


def _pinned(device: torch.device) -> bool:
    return device.type == "cuda"
