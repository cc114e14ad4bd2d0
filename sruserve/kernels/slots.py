"""The memory of a captured decode: one slot for every stream of a bucket."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod

import torch
from torch import Tensor

from sruserve.kernels.devices import needs_pinned

WINDOW = 64  # last tokens that the repetition penalty applies to
_ALIGN = 16  # bytes: the alignment of the kernels' pointers

Copy = Callable[[Tensor, Tensor], object]  # (target, source): in the order of the device's work


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """Streams, and their inputs of a burst, on the CPU, one entry for each stream.

    tokens: (streams) int64, the last token of each, which the first step consumes.
    source, target: (streams) int64, the state row to read (-1: zeros) and the one to write.
    limits: (streams) int64, the number of the burst's steps that a stream takes part in.
    seed, choice, draw: (streams) int64, key and position of its next random number; see
        `reference.philox.random_bits`. A seed's 64 bits are those of the unsigned number.
    temperature, top_p, min_p, penalty: (streams) float32; temperature 0 picks the most likely
        token.
    top_k: (streams) int32; 0 keeps all tokens.
    window: (streams, WINDOW) int64, the last tokens, oldest first; -1 for none.
    """

    tokens: Tensor
    source: Tensor
    target: Tensor
    limits: Tensor
    seed: Tensor
    choice: Tensor
    draw: Tensor
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
        return [
            DecodeInputs(
                **{
                    field.name: getattr(self, field.name)[first : first + max_streams]
                    for field in fields(self)
                }
            )
            for first in range(0, len(self), max_streams)
        ]


# What a burst changes, and what belongs to a stream. An empty slot takes part in no step.
_OF_BURST: dict[str, float] = {"source": -1, "target": -1, "limits": 0, "position": 0}
_OF_STREAM: dict[str, float] = {
    "tokens": 0,
    "seed": 0,
    "choice": 0,
    "draw": 0,
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "penalty": 1.0,
    "top_k": 0,
    "window": -1,
}
_FLOATS = ("temperature", "top_p", "min_p", "penalty")


def copy_in_order(target: Tensor, source: Tensor) -> None:
    """Copy without waiting; between a device and pinned memory, in the order of its work."""
    target.copy_(source, non_blocking=True)


class Slots:
    """The tensors of `DecodeInputs` for `size` streams on `device`, at addresses that never change.

    A step overwrites `tokens` with the tokens it picks, and counts `draw`. `position`, (size)
    int64, counts the burst's steps: a step writes its token to row `position` of `history`,
    (steps, size) int64, and to place `draw % WINDOW` of `window`, a ring. Past its limit a slot
    has the target -1, and a step writes nothing of it.

    copy: copies between this memory and that of the host, which is pinned for a GPU.
    """

    tokens: Tensor
    source: Tensor
    target: Tensor
    limits: Tensor
    seed: Tensor
    choice: Tensor
    draw: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    top_k: Tensor
    window: Tensor
    position: Tensor

    def __init__(
        self, size: int, steps: int, device: torch.device, copy: Copy = copy_in_order
    ) -> None:
        self.size, self._copy = size, copy
        # Two of what each burst needs on the host: one may still be read for the burst before.
        self._stream = _Block(_OF_STREAM, size, device, 1)
        self._burst = _Block(_OF_BURST, size, device, 2)
        for block in (self._stream, self._burst):
            for name, view in block.on_device.items():
                setattr(self, name, view)
        self.history = torch.zeros(steps, size, dtype=torch.int64, device=device)
        self._picked = [
            torch.zeros(steps, size, dtype=torch.int64, pin_memory=needs_pinned(device))
            for _ in range(2)
        ]
        self._turn = 0
        self.reset()

    def load(self, streams: DecodeInputs) -> None:
        """Put streams in the first slots, and empty the others. No burst may be running.

        `begin` brings in what belongs to a burst.
        """
        values = {name: getattr(streams, name) for name in _OF_STREAM}
        # The ring's place `draw % WINDOW` is that of the oldest token.
        places = (torch.arange(WINDOW) - streams.draw.unsqueeze(1)) % WINDOW
        values["window"] = streams.window.gather(1, places)
        self._stream.fill(0, values, len(streams))
        self._copy(*self._stream.pair(0))

    def begin(self, source: Tensor, target: Tensor, limits: Tensor) -> None:
        """Begin a burst of the streams that are loaded, (streams) each; see `DecodeInputs`."""
        self._turn = 1 - self._turn
        ended = limits <= 0
        rows = {"source": source, "target": target.masked_fill(ended, -1), "limits": limits}
        self._burst.fill(self._turn, rows, len(source))
        self._copy(*self._burst.pair(self._turn))

    def reset(self) -> None:
        """Return the slots to the start of the burst that was loaded last."""
        self._copy(*self._stream.pair(0))
        self._copy(*self._burst.pair(self._turn))

    def fetch(self, steps: int) -> Tensor:
        """Start copying the burst's first `steps` tokens to the CPU, (steps, size) int64.

        The memory is that of the burst after the next one, too.
        """
        picked = self._picked[self._turn][:steps]
        self._copy(picked, self.history[:steps])
        return picked


class _Block:
    """Fields in one piece of memory on the device, and `twins` pieces like it on the host."""

    def __init__(
        self, empty: dict[str, float], size: int, device: torch.device, twins: int
    ) -> None:
        self._empty, self._filled = empty, [0] * twins
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(empty, (size,))
        if "window" in empty:
            shapes["window"] = (size, WINDOW)
        total = sum(_padded(name, shape) for name, shape in shapes.items())
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self._hosts = [
            torch.zeros(total, dtype=torch.uint8, pin_memory=needs_pinned(device))
            for _ in range(twins)
        ]
        self.on_device = _views(self._device, shapes)
        self._fields = [_views(host, shapes) for host in self._hosts]
        for twin in self._fields:
            for name, field in twin.items():
                field.fill_(empty[name])

    def fill(self, twin: int, values: dict[str, Tensor], count: int) -> None:
        """Put values in the first `count` entries of the fields of a twin, and empty the others."""
        for name, value in values.items():
            field = self._fields[twin][name]
            field[:count] = value
            field[count : self._filled[twin]] = self._empty[name]
        self._filled[twin] = count

    def pair(self, twin: int) -> tuple[Tensor, Tensor]:
        """The memory on the device, and that of a twin."""
        return self._device, self._hosts[twin]


def _views(block: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    views, offset = {}, 0
    for name, shape in shapes.items():
        dtype = _dtype(name)
        end = offset + prod(shape) * dtype.itemsize
        views[name] = block[offset:end].view(dtype).view(shape)
        offset += _padded(name, shape)
    return views


def _dtype(name: str) -> torch.dtype:
    if name in _FLOATS:
        return torch.float32
    return torch.int32 if name == "top_k" else torch.int64


def _padded(name: str, shape: tuple[int, ...]) -> int:
    return -(-prod(shape) * _dtype(name).itemsize // _ALIGN) * _ALIGN
